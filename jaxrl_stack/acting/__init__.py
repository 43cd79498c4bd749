"""Acting and recording: one policy step, shared by host runners and by rollouts on the device."""
