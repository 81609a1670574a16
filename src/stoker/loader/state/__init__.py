"""How far an iteration is: what `state_dict` saves and `load_state_dict` restores."""
