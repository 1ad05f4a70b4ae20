# SPDX-License-Identifier: MIT
"""A spec of vLLM's OffloadingConnector that copies pages on the CPU, for servers of vllm_offload_test.py: vLLM's own manager and connector,
whose CPUOffloadingSpec copies on GPUs alone. HOST_BLOCKS_JOURNAL gets a line for each page that is moved, with a hash of its bytes on the device."""
import hashlib
import json
import os

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostWorker(OffloadingWorker):
    def __init__(self, caches, chunks):
        # As vLLM's own worker sees the caches (v1/kv_offload/cpu/gpu_worker.py).
        self.device = [each.tensor.view(torch.int8).view(-1, each.page_size_bytes) for each in caches.tensors]
        self.groups = caches.group_data_refs
        self.host = [torch.zeros(chunks, each.page_size_bytes, dtype=torch.int8) for each in caches.tensors]
        self.done, self.journal = [], open(os.environ["HOST_BLOCKS_JOURNAL"], "a")

    def move(self, job, device, host, is_load):
        moved = iter(zip(device.block_ids.tolist(), host.block_ids.tolist(), strict=True))
        for refs, count in zip(self.groups, device.group_sizes):
            for _ in range(count):
                block, chunk = next(moved)
                pages = [(self.device[ref.tensor_idx][block], self.host[ref.tensor_idx][chunk]) for ref in refs]
                for here, there in pages:
                    (here if is_load else there).copy_(there if is_load else here)
                digest = hashlib.sha256(b"".join(bytes(here.numpy()) for here, _ in pages)).hexdigest()
                print(json.dumps(["load" if is_load else "store", chunk, digest]), file=self.journal, flush=True)
        self.done.append(TransferResult(job, True, 1, 1e-9))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.move(job_id, src_spec, dst_spec, False)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self.move(job_id, dst_spec, src_spec, True)

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        pass


class HostBlocks(CPUOffloadingSpec):
    def get_worker(self, kv_caches):
        self._worker = self._worker or HostWorker(kv_caches, self.num_chunks)
        return self._worker
