// SPDX-License-Identifier: MIT
#include "base/plugin.hpp"

#include <dlfcn.h>

#include <filesystem>

#include "base/errors.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

fs::path find_plugin(const std::string& file, const std::string& remedy) {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  // The last one serves test binaries, which lie one folder below the build tree's root.
  for (const char* place : {".", "../lib/oscar", "../lib/x86_64-linux-gnu/oscar", "../lib64/oscar", ".."}) {
    if (fs::exists(folder / place / file)) return folder / place / file;
  }
  throw BackendUnavailable("cannot find the plug-in " + file, folder.string(), remedy);
}

}  // namespace

void* plugin_symbol(const std::string& name, const std::string& symbol, const std::string& remedy) {
  const fs::path path = find_plugin("oscar_" + name + ".so", remedy);
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* address = library == nullptr ? nullptr : ::dlsym(library, symbol.c_str());
  if (address == nullptr) {
    const char* reason = ::dlerror();
    throw BackendUnavailable(
        std::string("cannot open the plug-in: ") + (reason != nullptr ? reason : "no reason given"), path.string(),
        remedy);
  }
  return address;
}

}  // namespace oscar
