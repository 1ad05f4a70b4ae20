# SPDX-License-Identifier: MIT
"""Packed pages that a real vLLM moves to the host and back, by its OffloadingConnector and, on the CPU, the copies of host_blocks.py:
vllm_offload_test.py [OffloadTest.test_…]"""
import json

from sample_sets import PROJECT, sample_set
from vllm_serving import IDS, ON_CUDA, ServedModel, main

CHUNK_BYTES = 12288  # of a page of 32 tokens of the sample model, as vLLM rounds them up


class OffloadTest(ServedModel):
    def serve(self, chunks):
        """A cache of 40 blocks, and a host of so many."""
        self.journal = self.folder / "journal"
        more = {"cpu_bytes_to_use": CHUNK_BYTES * chunks} | ({} if ON_CUDA else {"spec_name": "HostBlocks", "spec_module_path": "host_blocks"})
        transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": more}
        python = f"{self.environment()['PYTHONPATH']}:{PROJECT / 'tests/python'}"
        self.served("--num-gpu-blocks-override", "40", "--max-model-len", "1024", "--max-num-batched-tokens", "672", "--kv-transfer-config",
                    json.dumps(transfer), OSCAR_KV_SET=str(sample_set("coded")), PYTHONPATH=python, HOST_BLOCKS_JOURNAL=str(self.journal))
        self.prompts = [IDS[i:i + 700] for i in (0, 5000, 9000, 20000)]  # of which the cache holds one

    def moved(self):
        """Pages that were loaded, on the CPU each with the bytes that were stored last in its chunk."""
        if ON_CUDA:
            return self.metric("vllm:external_prefix_cache_hits_total") / 32
        held, loads = {}, 0
        for move, chunk, digest in map(json.loads, self.journal.read_text().splitlines()):
            if move == "store":
                held[chunk] = digest
            else:
                self.assertEqual(held[chunk], digest)
                loads += 1
        return loads

    def test_requests_that_come_back(self):
        """They read what they wrote, and windows come back with pages: behind the same chunk of a prompt all bits are the same. Also where
        requests make room for each other."""
        path = sample_set("coded")
        self.serve(3000)
        self.assertIn("the exact first 64 and last 256 tokens of prompts go with them and take up to 8.8 MiB more", self.said())
        fresh = [self.complete(prompt) for prompt in self.prompts]
        self.assertEqual(self.moved(), 0)
        again = [self.complete(prompt) for prompt in self.prompts]
        self.assertEqual(self.moved(), 4 * 21)
        self.assertEqual(self.metric("vllm:external_prefix_cache_hits_total"), 4 * 21 * 32)
        self.assertEqual(again, fresh)
        self.assertLess(self.difference(self.prompts, again, path), 0.04)
        self.difference(self.prompts, again, None)
        whole = [prompt[:672] for prompt in self.prompts]  # 21 blocks, of which vLLM computes the last token again
        self.assertLess(self.difference(whole, [self.complete(prompt) for prompt in whole], path), 0.04)
        shorter = [prompt[100:350] for prompt in self.prompts]  # which the cache holds, but not 250 tokens more of each
        answers = self.complete_all(shorter, 250)
        self.assertGreater(self.metric("vllm:num_preemptions_total"), 0)
        self.assertLess(self.difference(shorter, answers, path), 0.05)
        if not ON_CUDA:  # of requests that made room vLLM's metric says nothing
            self.assertGreater(self.moved(), 2 * 4 * 21)
        self.assertNotIn("without their exact rows", self.said())

    def test_a_host_with_little_memory(self):
        """Pages come back, but not the exact rows of all prompts, which a line says; of more prompts than it holds the oldest are computed again."""
        self.serve(100)
        for prompt in self.prompts:
            self.complete(prompt)
        again = [self.complete(prompt) for prompt in self.prompts]
        self.assertEqual(self.moved(), 4 * 21)
        self.assertIn("first tokens of a prompt came back from the host without their exact rows, of which 153600 bytes are kept", self.said())
        self.assertLess(self.difference(self.prompts, again, sample_set("coded")), 0.3)
        for prompt in self.prompts:  # others
            self.complete(prompt[::-1])
        loads, fresh = self.moved(), [self.complete(prompt) for prompt in self.prompts[:2]]
        self.assertEqual(self.moved(), loads)
        self.assertLess(self.difference(self.prompts[:2], fresh, sample_set("coded")), 0.04)


if __name__ == "__main__":
    main()
