"""What a user of optix has -> a study: its configuration file, its engines' and benchmarks' commands, its histories."""
