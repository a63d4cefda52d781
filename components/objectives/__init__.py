"""What each arm minimises, one file per kind; a module with Settings and Objective is a kind."""
