//! LoRA training and sampling of decoder-only language models on the CPU.
