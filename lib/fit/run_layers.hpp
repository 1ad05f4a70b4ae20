// SPDX-License-Identifier: MIT
// The engine that works through the layers of a source. It knows no mathematics: it decides which layers are read side
// by side, which rows are taken while the next layer is read, and which layers are worked on together. Fits, searches
// and statistics differ in their steps alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"

namespace oscar {

/// Work on layers; Data is what is taken from the rows of one.
template <class Data>
struct LayerSteps {
  /// What progress is called: "fit: layer".
  std::string name;
  /// Reads the rows of a layer. Called from several threads where the backend works on layers side by side.
  std::function<Data(int layer_id, LayerStream& rows)> read;
  /// Takes the few rows that `make` looks at besides, perhaps while the next layer is read. Empty: there are none.
  std::function<void(LayerStream& rows, Data& data)> sample = {};
  /// Makes something of neighbouring layers, ascending. Called for one batch at a time, from any thread; a batch that
  /// is read meanwhile waits, so that no more than one holds what it works with.
  std::function<void(std::vector<Data> batch)> make;
};

/// Returns the shape for work of which nothing is gained by taking layers together.
[[nodiscard]] inline WorkShape one_by_one(WorkShape shape) {
  shape.layers_per_batch = 1;
  return shape;
}

/// One run over some layers.
template <class Data>
class LayerRun {
 public:
  LayerRun(QkvSource& source, std::span<const int> ids, const LayerSteps<Data>& steps, const WorkShape& shape,
           Status& status)
      : source_(source), ids_(ids.begin(), ids.end()), steps_(steps), shape_(shape), status_(status) {
    const auto size = static_cast<std::size_t>(shape.layers_per_batch);
    for (std::size_t first = 0; first < ids_.size(); first += size) {
      batches_.emplace_back(std::min(size, ids_.size() - first));
    }
  }

  void run() {
    std::atomic<std::int64_t> done = 0;
    for_each_layer(source_, ids_, shape_.concurrent_layers, [&](std::size_t i, std::unique_ptr<LayerStream> stream) {
      if (failed_) return;  // what was handed on throws below
      Data data = steps_.read(ids_[i], *stream);
      hand_on(i, std::move(data), std::move(stream));
      status_.progress(steps_.name, ++done, std::ssize(ids_));
    });
    for (Batch& batch : batches_) {
      for (std::future<void>& layer : batch.handed_on) {
        if (layer.valid()) layer.get();
      }
    }
  }

 private:
  struct Batch {
    explicit Batch(std::size_t count) : data(count), missing(count), handed_on(count) {}

    std::vector<Data> data;
    std::atomic<std::size_t> missing;
    std::vector<std::future<void>> handed_on;  // by layer; last, since these write to the others
  };

  /// Does what needs no more reading of whole layers: beside the next layer, if those go side by side.
  void hand_on(std::size_t place, Data data, std::unique_ptr<LayerStream> stream) {
    const auto size = static_cast<std::size_t>(shape_.layers_per_batch);
    Batch& batch = batches_[place / size];
    const std::size_t i = place % size;
    batch.data[i] = std::move(data);
    auto task = [this, &batch, i, stream = std::shared_ptr(std::move(stream))]() mutable {
      try {
        finish(batch, i, std::move(stream));
      } catch (...) {
        failed_ = true;
        throw;
      }
    };
    if (shape_.concurrent_layers == 1) return task();
    batch.handed_on[i] = std::async(std::launch::async, std::move(task));
  }

  void finish(Batch& batch, std::size_t i, std::shared_ptr<LayerStream> stream) {
    if (steps_.sample) steps_.sample(*stream, batch.data[i]);
    stream.reset();  // rows of a live model would pile up
    if (--batch.missing > 0) return;
    const std::lock_guard one_at_a_time(making_);
    steps_.make(std::exchange(batch.data, {}));
  }

  QkvSource& source_;
  std::vector<int> ids_;
  const LayerSteps<Data>& steps_;
  WorkShape shape_;
  Status& status_;
  std::mutex making_;
  std::atomic<bool> failed_ = false;
  std::deque<Batch> batches_;  // last, since what is handed on uses all of the above
};

/// Runs the steps over layers of the source, ascending. Throws what a step throws.
template <class Data>
void run_layers(QkvSource& source, std::span<const int> ids, const LayerSteps<Data>& steps, const WorkShape& shape,
                Status& status) {
  if (!ids.empty()) LayerRun<Data>(source, ids, steps, shape, status).run();
}

}  // namespace oscar
