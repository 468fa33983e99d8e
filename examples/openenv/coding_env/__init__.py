"""An OpenEnv environment that runs Python: an action is code, an observation is what it printed."""
