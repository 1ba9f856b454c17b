"""The API process: sockets towards clients, tokenisation, one session per request."""
