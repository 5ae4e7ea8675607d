"""What is known about vLLM and SGLang, as data: metrics per version, log lines, launch flags, facts."""
