"""Many runs over time: the schedule, the index of runs, nights, drift, and the events worth an alert."""
