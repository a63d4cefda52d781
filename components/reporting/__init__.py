"""Tables, figures and the report, from results files only."""
