"""How processes of one service talk: the control plane, later the round link."""
