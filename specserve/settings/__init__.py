"""Settings of a service: their names, types and ranges, and how `auto` is decided for a machine."""
