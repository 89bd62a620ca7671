"""The SN40L target: from the linalg program to a checked plan of where each tensor stands and when."""
