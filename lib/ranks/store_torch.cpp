// SPDX-License-Identifier: MIT
#include <c10/util/Logging.h>

#include <chrono>
#include <cstdlib>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/errors.hpp"
#include "ranks/store.hpp"

namespace oscar {
namespace {

using Bytes = std::vector<std::uint8_t>;

class TorchStore : public RankStore {
 public:
  TorchStore(c10::intrusive_ptr<c10d::Store> store, std::string where)
      : store_(std::move(store)), where_(std::move(where)) {}

  void set(const std::string& key, const std::string& value) override {
    ask([&] { store_->set(key, Bytes(value.begin(), value.end())); });
  }
  std::optional<std::string> find(const std::string& key) override {
    std::optional<std::string> value;
    ask([&] {
      if (!store_->check({key})) return;
      const Bytes bytes = store_->get(key);
      value.emplace(bytes.begin(), bytes.end());
    });
    return value;
  }
  void remove(const std::string& key) override {
    ask([&] { (void)store_->deleteKey(key); });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    std::int64_t value = 0;
    ask([&] { value = store_->add(key, amount); });
    return value;
  }
  std::unique_ptr<RankStore> clone() override {
    std::unique_ptr<RankStore> other;
    ask([&] { other = std::make_unique<TorchStore>(store_->clone(), where_); });
    return other;
  }

 private:
  template <class Call>
  void ask(const Call& call) {
    try {
      call();
    } catch (const std::exception&) {  // c10's texts are pages of stack
      throw TransportError("the store of the ranks does not answer", where_, "see what rank 0 says");
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string where_;
};

}  // namespace
}  // namespace oscar

oscar::RankStore* oscar_open_rank_store(const oscar::StoreAddress* address) {
  // c10d logs pages of stack for each call to a store that is gone. What its calls throw, callers tell.
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
  c10::initLogging();
  const std::string where = address->host + ":" + std::to_string(address->port);
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(address->port);
    options.isServer = address->serve;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * address->join_seconds));
    const auto store = c10::make_intrusive<c10d::TCPStore>(address->host, options);
    return new oscar::TorchStore(c10::make_intrusive<c10d::PrefixStore>(address->prefix, store), where);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string first_line = text.substr(0, text.find('\n'));
    throw oscar::TransportError(
        address->serve ? "cannot keep a store for the ranks: " + first_line : "cannot reach rank 0: " + first_line,
        where, "check that rank 0 runs there, or set MASTER_ADDR and MASTER_PORT");
  }
}
