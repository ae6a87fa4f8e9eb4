// Decoding, makespan, peak memory and BRKGA for CPUs, as an expert would write them: the yardstick of `graphrl bench`.
//
// The semantics are exactly those of DESIGN.md 3 (graphrl/costs/exact.py is the host twin): transfers are nodes with
// keys of their own, keys are quantised to the bits that a packed 32-bit word leaves beside the node's index, and
// memory is counted by place in the order. Not supported: aliases, reuses and resident weights.
//
// What makes it fast: one 32-bit word a heap entry; the first node that a popped one releases takes its place at the
// top of the heap (one sift instead of two); the clocks run along with the heap; a buffer's end is the last store to
// its place, without a comparison; children are made and evaluated while they are in the cache.
//
// Built at run time (compiled.py) with -DDEVICES=d. Threads: one graph each.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

constexpr int D = DEVICES;
enum Transfer { kRendezvous, kFree, kLink };

struct Costs {
  float makespan = 0;                  // seconds
  std::array<int64_t, D> peak{};       // bytes
  int64_t largest_peak() const { return *std::max_element(peak.begin(), peak.end()); }
};

// Lists of items by key, from pairs that are in the order wanted inside each list.
struct Lists {
  std::vector<int32_t> begin, item;
  Lists(int size, int pairs, const int32_t* key, const int32_t* value) : begin(size + 1), item(pairs) {
    for (int i = 0; i < pairs; i++) begin[key[i] + 1]++;
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int32_t> next(begin);
    for (int i = 0; i < pairs; i++) item[next[key[i]]++] = value[i];
  }
};

// Mirrored by `_GraphArrays` in compiled.py. Tensors are in the order of their producers.
struct GraphArrays {
  int32_t ops, tensors, uses, controls;
  const float* runtime;           // [ops] seconds
  const float* transfer_seconds;  // [tensors]
  const int64_t* workspace;       // [ops] bytes
  const int64_t* bytes;           // [tensors]
  const uint8_t* kept;            // [tensors]
  const int32_t* producer;        // [tensors]
  const int32_t *use_tensor, *use_op;                 // [uses], distinct, sorted
  const int32_t *control_source, *control_target;     // [controls], distinct, sorted
};

struct Graph {
  explicit Graph(const GraphArrays& a)
      : ops(a.ops),
        tensors(a.tensors),
        genes((D + 1) * a.ops + D * a.tensors),
        runtime(a.runtime, a.runtime + a.ops),
        transfer_seconds(a.transfer_seconds, a.transfer_seconds + a.tensors),
        workspace(a.workspace, a.workspace + a.ops),
        bytes(a.bytes, a.bytes + a.tensors),
        freed_at_home(bytes),
        output_bytes(a.ops),
        producer(a.producer, a.producer + a.tensors),
        waits(a.ops),
        first_tensor(a.ops + 1),
        readers(a.tensors, a.uses, a.use_tensor, a.use_op),
        inputs(a.ops, a.uses, a.use_op, a.use_tensor),
        waiters(a.ops, a.controls, a.control_source, a.control_target) {
    has_workspace = std::any_of(workspace.begin(), workspace.end(), [](int64_t b) { return b > 0; });
    for (int t = 0; t < tensors; t++) {
      if (a.kept[t]) freed_at_home[t] = 0;
      output_bytes[producer[t]] += bytes[t];
      first_tensor[producer[t] + 1]++;
    }
    std::partial_sum(first_tensor.begin(), first_tensor.end(), first_tensor.begin());
    for (int i = 0; i < a.uses; i++) waits[a.use_op[i]]++;
    for (int i = 0; i < a.controls; i++) waits[a.control_target[i]]++;
    const uint32_t last_index = uint32_t(ops + tensors * (D - 1) - 1);
    index_bits = last_index > 0 ? 32 - __builtin_clz(last_index) : 1;
  }

  int ops, tensors, genes, index_bits;
  bool has_workspace;
  std::vector<float> runtime, transfer_seconds;
  std::vector<int64_t> workspace, bytes, freed_at_home, output_bytes;
  std::vector<int32_t> producer, waits, first_tensor;
  Lists readers, inputs, waiters;  // ops by tensor, tensors by op, ops by op
};

// The ready nodes as a binary heap of packed keys, largest first. `pop` leaves the top open, so that the first push
// after it replaces the top instead of moving a leaf there and sifting twice.
class Heap {
 public:
  explicit Heap(int capacity) : entries_(capacity + 2) {}

  void clear() { size_ = 0, open_ = false; }

  bool pop(uint32_t& key) {
    if (open_) close();
    if (size_ == 0) return false;
    key = entries_[0];
    open_ = true;
    return true;
  }

  void push(uint32_t key) {
    if (open_) {
      open_ = false;
      sift_down(key);
      return;
    }
    uint32_t* h = entries_.data();
    int i = size_++;
    while (i > 0) {
      const int parent = (i - 1) >> 1;
      if (h[parent] >= key) break;
      h[i] = h[parent];
      i = parent;
    }
    h[i] = key;
  }

 private:
  void close() {
    open_ = false;
    const uint32_t last = entries_[--size_];
    if (size_ > 0) sift_down(last);
  }

  void sift_down(uint32_t key) {
    uint32_t* h = entries_.data();
    h[size_] = 0;  // a sentinel beside the last entry, which may have no sibling
    int i = 0;
    for (int child; (child = 2 * i + 1) < size_; i = child) {
      child += h[child + 1] > h[child];
      if (h[child] <= key) break;
      h[i] = h[child];
    }
    h[i] = key;
  }

  std::vector<uint32_t> entries_;
  int size_ = 0;
  bool open_ = false;
};

// Costs chromosomes of one graph. Genes: affinities [D][ops], op keys [ops], transfer keys [D][tensors], in [0, 1).
template <Transfer transfer, bool timed, bool memory>
class Decoder {
 public:
  explicit Decoder(const Graph& graph)
      : g_(graph),
        mask_((uint32_t(1) << graph.index_bits) - 1),
        scale_(float(uint32_t(1) << (31 - graph.index_bits))),
        heap_(graph.ops + graph.tensors * (D - 1)),
        device_(graph.ops),
        waits_(graph.ops),
        keys_(graph.ops),
        ready_(graph.ops),
        last_(size_t(graph.tensors) * D),
        change_(size_t(graph.ops + graph.tensors * (D - 1) + 2) * D),
        workspace_(graph.has_workspace ? change_.size() : 0) {}

  Costs evaluate(const float* genes) {
    start(genes);
    for (uint32_t top; heap_.pop(top);) {
      const int index = int(mask_ - (top & mask_));
      place_++;
      if (index < g_.ops) {
        run_op(index);
      } else {
        run_transfer(index - g_.ops);
      }
    }
    Costs costs;
    if (timed) costs.makespan = *std::max_element(free_.begin(), free_.end());  // no transfer ends after its readers
    if (memory) find_peaks(costs.peak);
    return costs;
  }

 private:
  void start(const float* genes) {
    const int n = g_.ops;
    for (int v = 0; v < n; v++) {
      int best = 0;
      for (int d = 1; d < D; d++) best = genes[d * n + v] > genes[best * n + v] ? d : best;
      device_[v] = uint8_t(best);
    }
    const float* op_keys = genes + D * n;
    transfer_keys_ = op_keys + n;
    for (int v = 0; v < n; v++) keys_[v] = pack(op_keys[v], v);
    std::copy(g_.waits.begin(), g_.waits.end(), waits_.begin());
    if (timed) std::fill(ready_.begin(), ready_.end(), 0.f);
    if (memory) std::fill(last_.begin(), last_.end(), -1);
    free_.fill(0), link_.fill(0);
    place_ = 0;  // of a node in the order, from 1
    heap_.clear();
    for (int v = 0; v < n; v++) {
      if (waits_[v] == 0) heap_.push(keys_[v]);
    }
  }

  // Larger keys first, ties to the lower index. The product is exact and below 2^31: a power of two scales [0, 1).
  uint32_t pack(float key, int index) const {
    return uint32_t(int32_t(key * scale_)) << g_.index_bits | (mask_ - uint32_t(index));
  }

  void run_op(int v) {
    const int here = device_[v];
    float end = 0;
    if (timed) ready_[v] = free_[here] = end = std::max(free_[here], ready_[v]) + g_.runtime[v];
    if (memory) {
      allocate(here, g_.output_bytes[v]);
      if (g_.has_workspace) need(here, g_.workspace[v]);
      for (int i = g_.inputs.begin[v]; i < g_.inputs.begin[v + 1]; i++) last_[g_.inputs.item[i] * D + here] = place_;
    }
    for (int t = g_.first_tensor[v]; t < g_.first_tensor[v + 1]; t++) {
      if (memory) last_[t * D + here] = place_;
      const uint32_t readers = release_readers(t, here, end);
      push_transfers(t, here, readers);
    }
    for (int i = g_.waiters.begin[v]; i < g_.waiters.begin[v + 1]; i++) release(g_.waiters.item[i], true, end);
  }

  void run_transfer(int index) {
    const int t = index / (D > 1 ? D - 1 : 1), foreign = index % (D > 1 ? D - 1 : 1);
    const int v = g_.producer[t], from = device_[v], to = foreign + (from <= foreign);
    float end = 0;
    if (timed) {
      float begin = ready_[v];  // an op that has run: its end
      if (transfer == kRendezvous) begin = std::max({begin, free_[from], free_[to]});
      if (transfer == kLink) begin = std::max(begin, link_[from]);
      end = begin + g_.transfer_seconds[t];
      if (transfer == kRendezvous) free_[from] = free_[to] = end;
      if (transfer == kLink) link_[from] = end;
    }
    if (memory) {
      allocate(to, g_.bytes[t]);
      if (g_.has_workspace) need(to, 0);
      last_[t * D + from] = place_;
    }
    release_readers(t, to, end);
  }

  // Returns the devices of the tensor's readers, a bit each.
  uint32_t release_readers(int t, int here, float end) {
    uint32_t devices = 0;
    for (int i = g_.readers.begin[t]; i < g_.readers.begin[t + 1]; i++) {
      const int v = g_.readers.item[i], there = device_[v];
      devices |= uint32_t(1) << there;
      release(v, there == here, end);
    }
    return devices;
  }

  void release(int v, bool now, float end) {
    if (timed) ready_[v] = std::max(ready_[v], now ? end : 0.f);
    waits_[v] -= now;
    if (now & (waits_[v] == 0)) heap_.push(keys_[v]);
  }

  void push_transfers(int t, int here, uint32_t readers) {
    for (uint32_t left = readers & ~(uint32_t(1) << here); left != 0; left &= left - 1) {
      const int to = __builtin_ctz(left);
      heap_.push(pack(transfer_keys_[to * g_.tensors + t], g_.ops + t * (D - 1) + to - (to > here)));
    }
  }

  void allocate(int here, int64_t bytes) {
    for (int d = 0; d < D; d++) change_[place_ * D + d] = d == here ? bytes : 0;
  }

  void need(int here, int64_t bytes) {
    for (int d = 0; d < D; d++) workspace_[place_ * D + d] = d == here ? bytes : 0;
  }

  // What ends at a place is freed after it; copies that never were end at -1, and row 0 takes them.
  void find_peaks(std::array<int64_t, D>& peak) {
    for (int d = 0; d < D; d++) change_[(place_ + 1) * D + d] = 0;
    for (int t = 0; t < g_.tensors; t++) {
      const int home = device_[g_.producer[t]];
      for (int d = 0; d < D; d++) {
        change_[(last_[t * D + d] + 1) * D + d] -= d == home ? g_.freed_at_home[t] : g_.bytes[t];
      }
    }
    std::array<int64_t, D> live{};
    for (int i = 1; i <= place_; i++) {
      for (int d = 0; d < D; d++) {
        live[d] += change_[i * D + d];
        peak[d] = std::max(peak[d], live[d] + (g_.has_workspace ? workspace_[i * D + d] : 0));
      }
    }
  }

  const Graph& g_;
  const uint32_t mask_;
  const float scale_;
  Heap heap_;
  std::vector<uint8_t> device_;    // [ops]
  std::vector<int32_t> waits_;     // [ops] inputs and control predecessors that have not come
  std::vector<uint32_t> keys_;     // [ops] packed
  std::vector<float> ready_;       // [ops] latest arrival; end, once it ran
  std::vector<int32_t> last_;      // [tensors][D] place of the last node that needs a copy
  std::vector<int64_t> change_;    // [places][D] bytes
  std::vector<int64_t> workspace_; // [places][D] bytes
  std::array<float, D> free_{}, link_{};
  const float* transfer_keys_ = nullptr;
  int place_ = 0;
};

// One integer hash (lowbias32) makes all random words: it vectorises.
inline uint32_t mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t word() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return uint32_t(z >> 32);
  }
  int below(int limit) { return int(uint64_t(word()) * uint32_t(limit) >> 32); }

 private:
  uint64_t state_;
};

void fill_uniform(float* genes, int count, uint32_t seed) {
  for (int i = 0; i < count; i++) genes[i] = float(mix(seed + uint32_t(i)) >> 8) * 0x1p-24f;
}

// A coin of 16 bits a gene: each word decides one gene in either half.
void cross(float* child, const float* elite, const float* other, int count, uint32_t seed, uint32_t threshold) {
  const int half = count / 2;
  for (int i = 0; i < half; i++) {
    const uint32_t word = mix(seed + uint32_t(i));
    child[i] = (word & 0xffff) < threshold ? elite[i] : other[i];
    child[half + i] = word >> 16 < threshold ? elite[half + i] : other[half + i];
  }
  if (count % 2 == 1) child[count - 1] = (mix(~seed) & 0xffff) < threshold ? elite[count - 1] : other[count - 1];
}

struct Parameters {  // mirrored by `_Parameters` in compiled.py
  int32_t population, elites, mutants, generations;
  float elite_bias;
};

// The algorithm of graphrl/solvers/brkga.py: every generation makes and evaluates population - elites chromosomes.
template <typename Decoder, typename Fitness>
double brkga(const Graph& graph, const Parameters& q, uint64_t seed, Fitness fitness, float* best) {
  const int offspring = q.population - q.elites, genes = graph.genes;
  const uint32_t threshold = uint32_t(q.elite_bias * 65536);
  Decoder decoder(graph);
  Random random(seed);
  std::vector<float> store(size_t(q.population + offspring) * genes);
  struct Member {
    double value;
    float* genes;
  };
  std::vector<Member> members;  // elites first; after them the rest of the last generation
  std::vector<float*> spare;
  for (int i = 0; i < q.population + offspring; i++) spare.push_back(&store[size_t(i) * genes]);
  for (int generation = 0; generation < q.generations; generation++) {
    std::vector<Member> made;
    for (int i = 0; i < offspring; i++) {
      float* child = spare.back();
      spare.pop_back();
      if (generation == 0 || i < q.mutants) {
        fill_uniform(child, genes, random.word());
      } else {
        const float* elite = members[random.below(q.elites)].genes;
        const float* other = members[q.elites + random.below(int(members.size()) - q.elites)].genes;
        cross(child, elite, other, genes, random.word(), threshold);
      }
      made.push_back({fitness(decoder.evaluate(child)), child});
    }
    for (size_t i = q.elites; i < members.size(); i++) spare.push_back(members[i].genes);
    members.resize(std::min(members.size(), size_t(q.elites)));
    members.insert(members.end(), made.begin(), made.end());
    std::partial_sort(members.begin(), members.begin() + q.elites, members.end(),
                      [](const Member& a, const Member& b) { return a.value < b.value; });
  }
  std::copy(members[0].genes, members[0].genes + genes, best);
  return members[0].value;
}

// Calls `work` with a null pointer to the decoder type that `transfer` and the flags ask for.
template <bool timed, bool memory, typename Work>
void with_transfer(int transfer, Work work) {
  if (transfer == kRendezvous) work(static_cast<Decoder<kRendezvous, timed, memory>*>(nullptr));
  if (transfer == kFree) work(static_cast<Decoder<kFree, timed, memory>*>(nullptr));
  if (transfer == kLink) work(static_cast<Decoder<kLink, timed, memory>*>(nullptr));
}

template <typename Work>
void with_decoder(int transfer, bool timed, bool memory, Work work) {
  if (timed && memory) with_transfer<true, true>(transfer, work);
  if (timed && !memory) with_transfer<true, false>(transfer, work);
  if (!timed) work(static_cast<Decoder<kFree, false, true>*>(nullptr));  // without clocks all models are one
}

}  // namespace

extern "C" {

void* graph_new(const GraphArrays* arrays) { return new Graph(*arrays); }
void graph_delete(void* graph) { delete static_cast<Graph*>(graph); }

// Costs `count` chromosomes of each graph, `repeats` times over. genes[g] is [count][genes of g], makespan is
// [graphs][count] seconds, peak is [graphs][count][D] bytes; what is not asked for is 0.
void evaluate(void* const* graphs, int num_graphs, int transfer, int timed, int memory, const float* const* genes,
              int count, int repeats, int threads, float* makespan, int64_t* peak) {
  with_decoder(transfer, timed, memory, [&](auto* type) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int g = 0; g < num_graphs; g++) {
      const Graph& graph = *static_cast<const Graph*>(graphs[g]);
      std::remove_pointer_t<decltype(type)> decoder(graph);
      for (int i = 0; i < count * repeats; i++) {
        const int p = i % count;
        const Costs costs = decoder.evaluate(genes[g] + size_t(p) * graph.genes);
        makespan[g * count + p] = costs.makespan;
        std::copy(costs.peak.begin(), costs.peak.end(), peak + (size_t(g) * count + p) * D);
      }
    }
  });
}

// One BRKGA run on each graph. value is [graphs], best[g] is [genes of g].
void search(void* const* graphs, int num_graphs, int transfer, int makespan_objective, const Parameters* parameters,
            uint64_t seed, int threads, double* value, float* const* best) {
  with_decoder(transfer, makespan_objective, !makespan_objective, [&](auto* type) {
    using Type = std::remove_pointer_t<decltype(type)>;
    const auto fitness = [&](const Costs& c) { return makespan_objective ? c.makespan : double(c.largest_peak()); };
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int g = 0; g < num_graphs; g++) {
      value[g] = brkga<Type>(*static_cast<const Graph*>(graphs[g]), *parameters, seed + uint64_t(g), fitness, best[g]);
    }
  });
}

}  // extern "C"
