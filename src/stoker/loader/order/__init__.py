"""Which samples a loader reads and when: its schedule, and samplers that show or contain one."""
