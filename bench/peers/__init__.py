"""What a user would pick instead, measured beside Ister where it is installed. One file for each."""
