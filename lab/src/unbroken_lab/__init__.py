"""The laboratory of Unbroken: simulator, experiments, fault campaigns, demonstration, generated documentation."""
