"""A discrete-event model of targets, drafts, link and planner that runs the shipped planner."""
