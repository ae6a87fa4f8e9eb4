"""What a loop keeps of every trip for another loop, computed again there instead."""
