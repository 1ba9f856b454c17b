"""OpenAI's /v1/responses: made, streamed, kept for a while, asked for again."""
