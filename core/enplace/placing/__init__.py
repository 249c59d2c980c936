"""What placers share: their registry, their options, running one, list schedules, moves."""
