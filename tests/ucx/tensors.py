"""PyTorch's tensors: bytes made and compared on the GPU."""

MIX = -2960836687051489133


def pattern(torch, length, seed):
    index = torch.arange(length // 8, dtype=torch.int64, device="cuda")
    x = (index + (seed << 40)) * MIX
    return (x ^ (x >> 29)).view(torch.uint8)


def make_tensors(torch, count, size):
    return [torch.empty(size, dtype=torch.uint8, device="cuda")
            for _ in range(count)]


def fill(torch, tensors, seed):
    for number, tensor in enumerate(tensors):
        tensor.copy_(pattern(torch, tensor.numel(), seed + number))
    torch.cuda.synchronize()


def wrong_bytes(torch, tensors, seed):
    wrong = 0
    for number, tensor in enumerate(tensors):
        want = pattern(torch, tensor.numel(), seed + number)
        if not torch.equal(tensor, want):
            wrong += int((tensor != want).sum())
    return wrong


def descriptors(tensors):
    return [(t.data_ptr(), t.numel(), t.get_device()) for t in tensors]
