#!/usr/bin/env python3
"""PyTorch and NIXL: the same job on both kinds of segments, in turn.

Two processes. Each holds the tensors twice, in cudaMalloc segments and in
expandable ones, and registers both; the importer then reads and writes them
transfer by transfer in turn, so that whoever else uses the machine slows both.
Every combination of the two sides' kinds is timed, since each may cost.
Prints lines "turns COUNTxSIZE OPERATION LOCAL-REMOTE median=S total=S", and
the wrong bytes. Needs a GPU, torch and nixl.
"""
import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'ucx'))

import nixl_pair  # noqa: E402
import pair  # noqa: E402
import tensors  # noqa: E402

KINDS = ('plain', 'expandable')
MIB = 1 << 20
SHAPES = [(1, 512 * MIB), (820, 4 * MIB)]


def use(torch, kind):
    torch.cuda.memory._set_allocator_settings(
        f'expandable_segments:{kind == "expandable"}')


def is_expandable(torch, tensor):
    for segment in torch.cuda.memory_snapshot():
        first = segment['address']
        if first <= tensor.data_ptr() < first + segment['total_size']:
            return segment.get('is_expandable')
    raise RuntimeError('a tensor without a segment')


def tensors_of_both(torch, count, size):
    both = {}
    for kind in KINDS:
        use(torch, kind)
        both[kind] = tensors.make_tensors(torch, count, size)
        if is_expandable(torch, both[kind][0]) != (kind == 'expandable'):
            raise RuntimeError(f'not {kind} segments')
    return both


def register(agent, both):
    return [agent.register_memory(
        [(*d, '') for d in tensors.descriptors(made)], 'VRAM')
        for made in both.values()]


def exporter(channel):
    import torch
    torch.zeros(1, device='cuda')
    agent = nixl_pair.agent_of('exporter')
    while True:
        message = nixl_pair.receive(channel)
        if message[0] == 'quit':
            return 0
        if message[0] == 'check':
            nixl_pair.send(channel, tensors.wrong_bytes(
                torch, both[message[1]], message[2]))
            continue
        if message[0] == 'end':
            for registered in held:
                agent.deregister_memory(registered)
            both = held = None
            torch.cuda.empty_cache()
            nixl_pair.send(channel, 'ended')
            continue
        both = tensors_of_both(torch, message[1], message[2])
        for number, kind in enumerate(KINDS):
            tensors.fill(torch, both[kind], 1000 * (number + 1))
        held = register(agent, both)
        nixl_pair.send(channel, (
            agent.get_agent_metadata(),
            {kind: tensors.descriptors(both[kind]) for kind in KINDS}))


def shape(channel, torch, agent, count, size, options):
    nixl_pair.send(channel, ('shape', count, size))
    metadata, remote = nixl_pair.receive(channel)
    peer = agent.add_remote_agent(metadata)
    both = tensors_of_both(torch, count, size)
    held = register(agent, both)
    wrong = 0
    for number, kind in enumerate(KINDS):
        tensors.fill(torch, both[kind], 7)
        nixl_pair.move(agent, 'READ', tensors.descriptors(both[kind]),
                       remote[kind], peer, options)
        wrong += tensors.wrong_bytes(torch, both[kind], 1000 * (number + 1))
    # Every source has the same bytes from here on.
    for kind in KINDS:
        tensors.fill(torch, both[kind], 50)
        nixl_pair.move(agent, 'WRITE', tensors.descriptors(both[kind]),
                       remote[kind], peer, options)
    ways = [(operation, local, there) for operation in ('READ', 'WRITE')
            for local in KINDS for there in KINDS]
    handles = {
        (operation, local, there): agent.initialize_xfer(
            operation,
            agent.get_xfer_descs(tensors.descriptors(both[local]), 'VRAM'),
            agent.get_xfer_descs(remote[there], 'VRAM'), peer)
        for operation, local, there in ways}
    times = {way: [] for way in ways}
    for _ in range(options.turns):
        for way in ways:
            times[way].append(nixl_pair.run_transfer(agent, handles[way], 30))
    for way, spent in times.items():
        spent = sorted(spent[2:])
        print(f'turns {count}x{size} {way[0]} {way[1]}-{way[2]} '
              f'median={spent[len(spent) // 2]:.9f} total={sum(spent):.9f}',
              flush=True)
        agent.release_xfer_handle(handles[way])
    for kind in KINDS:
        nixl_pair.send(channel, ('check', kind, 50))
        wrong += nixl_pair.receive(channel)
        wrong += tensors.wrong_bytes(torch, both[kind], 50)
    agent.remove_remote_agent(peer)
    for registered in held:
        agent.deregister_memory(registered)
    both = None
    torch.cuda.empty_cache()
    nixl_pair.send(channel, ('end',))
    nixl_pair.receive(channel)
    print(f'wrong bytes {wrong}', flush=True)
    return wrong


def importer(channel, options):
    import torch
    torch.zeros(1, device='cuda')
    agent = nixl_pair.agent_of('importer')
    wrong = sum(shape(channel, torch, agent, count, size, options)
                for count, size in SHAPES)
    nixl_pair.send(channel, ('quit',))
    return 1 if wrong else 0


def environment(options):
    env = dict(os.environ)
    env.pop('LD_PRELOAD', None)
    env.pop('PYTORCH_CUDA_ALLOC_CONF', None)
    if options.shim:
        env['LD_PRELOAD'] = str(Path(options.shim).resolve(strict=True))
    # Without NVLink UCX switches GET over cuda_ipc off.
    env['UCX_CUDA_IPC_ENABLE_GET_ZCOPY'] = 'y'
    env['NIXL_LOG_LEVEL'] = 'WARN'
    return env


def run(options):
    sockets = socket.socketpair()
    processes, logs = [], []
    for role, own in zip(('exporter', 'importer'), sockets):
        logs.append(tempfile.TemporaryFile(mode='w+', errors='replace'))
        processes.append(subprocess.Popen(
            [sys.executable, __file__, '--role', role, '--fd',
             str(own.fileno()), '--turns', str(options.turns)],
            env=environment(options), pass_fds=[own.fileno()],
            stdin=subprocess.DEVNULL, stdout=logs[-1],
            stderr=subprocess.STDOUT, start_new_session=True))
    for own in sockets:
        own.close()
    codes = pair.wait_both(processes, options.limit)
    texts = []
    for log in logs:
        log.seek(0)
        texts.append(log.read())
        log.close()
    return codes, texts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--shim')
    parser.add_argument('--turns', type=int, default=43)
    parser.add_argument('--limit', type=float, default=60)
    parser.add_argument('--role', choices=['exporter', 'importer'])
    parser.add_argument('--fd', type=int)
    options = parser.parse_args()
    options.reps, options.timeout = 1, 30  # of nixl_pair.move
    if options.role:
        channel = socket.socket(fileno=options.fd)
        return exporter(channel) if options.role == 'exporter' else \
            importer(channel, options)
    codes, texts = run(options)
    print(texts[1])
    if codes != (0, 0):
        print(f'exit codes {codes}; exporter:\n{texts[0][-2000:]}')
    return 0 if codes == (0, 0) else 1


if __name__ == '__main__':
    sys.exit(main())
