"""What a user would pick instead: ResNet-50 in PyTorch, compiled, channels last, half precision. Prints `number NAME VALUE`.
GPU_CHECKS_TORCH names how it is compiled: max-autotune, or another of torch.compile's modes.

Ends with 77 where there is no PyTorch with CUDA. Inputs are on the GPU already, so this is the network alone.
"""

import os
import sys
import time

try:
    import torch
    from torch import nn
except ImportError:
    print("skip PyTorch is not there")
    sys.exit(77)
if not torch.cuda.is_available():
    print("skip this PyTorch has no CUDA here")
    sys.exit(77)


class Block(nn.Module):
    """Three convolutions and a way around them."""

    def __init__(self, inputs, middle, stride):
        super().__init__()
        outputs = 4 * middle

        def conv(a, b, side, stride=1):
            return nn.Sequential(nn.Conv2d(a, b, side, stride, side // 2, bias=False), nn.BatchNorm2d(b))

        self.inner = nn.Sequential(
            conv(inputs, middle, 1), nn.ReLU(), conv(middle, middle, 3, stride), nn.ReLU(), conv(middle, outputs, 1)
        )
        self.around = conv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x):
        return torch.relu(self.inner(x) + self.around(x))


def resnet():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        middle = 64 << stage
        for block in range(count):
            layers.append(Block(inputs, middle, 2 if stage and not block else 1))
            inputs = 4 * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def main():
    print("PyTorch", torch.__version__, flush=True)
    network = resnet().eval().half().cuda().to(memory_format=torch.channels_last)
    # For each size by itself: the second would have it made for any.
    compiled = torch.compile(network, mode=os.environ.get("GPU_CHECKS_TORCH", "max-autotune"), dynamic=False)
    with torch.inference_mode():
        for items in (1, 8, 32, 128):
            images = torch.rand(items, 3, 224, 224, device="cuda").half().to(memory_format=torch.channels_last)
            try:
                for _ in range(10):
                    compiled(images)
            except Exception as missing:  # it needs Triton and a C compiler, which not every machine has
                print(f"skip torch.compile cannot be had here: {' '.join(str(missing).split())[:200]}")
                sys.exit(77)
            torch.cuda.synchronize()
            began, batches = time.perf_counter(), 0
            while time.perf_counter() - began < 2:
                for _ in range(10):
                    compiled(images)
                torch.cuda.synchronize()
                batches += 10
            print(f"number torch_b{items} {batches * items / (time.perf_counter() - began):e}", flush=True)


main()
