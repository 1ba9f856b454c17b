"""What a user who sets flags by hand gains over one who sets none."""
