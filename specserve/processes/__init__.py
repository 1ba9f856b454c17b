"""The processes of a service: who starts, watches and ends them."""
