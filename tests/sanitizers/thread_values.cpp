// SPDX-License-Identifier: MIT
// A plug-in of which each thread has its own values. A block of 40 bytes begins 16 bytes behind a page in every thread.
namespace {

thread_local void* values[5];

}  // namespace

extern "C" void** thread_values() { return values; }
