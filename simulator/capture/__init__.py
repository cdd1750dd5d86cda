"""What a training script really does in a step: its operators, messages and memory, recorded on one rank without a GPU.

user's script --child process, torch on fake tensors--> Capture --program--> Program --price, run, measure--> Prediction

It executes the user's own code; nothing else of the product does.  Only what runs in the child needs torch, and imports it where
it is used.
"""
