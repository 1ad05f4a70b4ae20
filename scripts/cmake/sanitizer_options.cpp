// SPDX-License-Identifier: MIT
// What AddressSanitizer's runtime asks a program for: options that hold unless ASAN_OPTIONS says otherwise.

/// Glibc gets the memory of a plug-in's thread_local variables from malloc. The runtimes of GCC 12 and clang 14 guess
/// that glibc is 2.19 if that memory begins 16 bytes behind a page, which is chance (one in 256 for each thread with
/// variables of the decoder's plug-in), take what lies before it for a header, and LeakSanitizer crashes at the range
/// found there ("Tracer caught signal 11", https://github.com/google/sanitizers/issues/1322). Nothing is lost without
/// the guess: LeakSanitizer looks for pointers in all that the dynamic linker got from malloc.
extern "C" const char* __asan_default_options() { return "intercept_tls_get_addr=0"; }
