"""How processes of a service talk: control messages, and the links between target and drafts."""
