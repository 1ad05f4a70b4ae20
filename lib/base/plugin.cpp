// SPDX-License-Identifier: MIT
#include "base/plugin.hpp"

#include <dlfcn.h>

#include <cstdint>
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
    const char* const said = ::dlerror();
    const std::string reason = said != nullptr ? said : "no reason given";
    const bool no_room = reason.find("failed to map") != reason.npos || reason.find("allocate memory") != reason.npos;
    throw BackendUnavailable(
        "cannot open the plug-in: " + reason, path.string(),
        no_room ? "the library is there: give it more memory (ulimit -v, or the container's limit)" : remedy);
  }
  return address;
}

namespace {

constexpr char kBuiltWith[] = OSCAR_TORCH_VERSION;  // "2.11"

/// "2.13": of the libtorch that this program finds; empty: it finds none, though the plug-in may.
std::string found_version() {
  void* const library = ::dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_LOCAL);  // it stays open
  if (library == nullptr) return "";
  auto* const version = reinterpret_cast<std::uint64_t (*)()>(::dlsym(library, "aoti_torch_abi_version"));
  if (version == nullptr) return "a version before 2.9";
  return std::to_string(version() >> 56U & 255U) + "." + std::to_string(version() >> 48U & 255U);
}

}  // namespace

void* torch_plugin_symbol(const std::string& name, const std::string& symbol) {
  const std::string built_with = kBuiltWith;
  const std::string remedy = "install torch " + built_with + " beside oscar (pip install 'torch==" + built_with +
                             ".*') or build oscar with the torch that is there; a model that runs in Python or in a "
                             "server is observed there, with any torch (apps/python/README.md)";
  const std::string found = found_version();
  if (!found.empty() && found != built_with) {
    throw BackendUnavailable(
        "this needs torch " + built_with + ", with which oscar was built, and finds torch " + found, "libtorch_cpu.so",
        remedy);
  }
  return plugin_symbol(name, symbol, remedy);
}

}  // namespace oscar
