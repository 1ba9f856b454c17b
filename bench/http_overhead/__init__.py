"""What OpenAI's API over HTTP costs beside gRPC."""
