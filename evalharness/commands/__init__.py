"""What each command does, between the command line and the stages; functions return exit codes."""
