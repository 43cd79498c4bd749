"""Acting and recording: one policy step, shared by host EnvRunners and by rollouts on the device."""
