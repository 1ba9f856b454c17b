"""What is prepared and measured for GPUs, whose time is rare."""
