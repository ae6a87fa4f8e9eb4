// Decoding, makespan, peak memory and BRKGA for CPUs, as an expert would write them: the yardstick of `graphrl bench`.
//
// The semantics are exactly those of graphrl/costs (graphrl/costs/exact is the host twin): transfers are nodes with
// keys of their own, keys are quantised to the bits that a packed 32-bit word leaves beside the node's index, and
// memory is counted by place in the order. Not supported: aliases, reuses and resident weights.
//
// What makes it fast: one 32-bit word a heap entry; the first node that a popped one releases takes its place at the
// top of the heap (one sift instead of two); the clocks run along with the heap; memory is a pass without branches;
// children are made and evaluated while they are in the cache. Tried and slower: bottom-up sifting, one branch-free
// path for ops and transfers.
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
        uses(a.uses),
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
        use_tensor(a.use_tensor, a.use_tensor + a.uses),
        use_op(a.use_op, a.use_op + a.uses),
        readers(a.tensors, a.uses, a.use_tensor, a.use_op),
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
    index_bits = nodes() > 1 ? 32 - __builtin_clz(uint32_t(nodes() - 1)) : 1;
  }

  int nodes() const { return ops + tensors * (D - 1); }

  int ops, tensors, uses, genes, index_bits;
  bool has_workspace;
  std::vector<float> runtime, transfer_seconds;
  std::vector<int64_t> workspace, bytes, freed_at_home, output_bytes;
  std::vector<int32_t> producer, waits, first_tensor, use_tensor, use_op;
  Lists readers, waiters;  // ops by tensor, control successors by op
};

// Everything in the decoding loop is inlined, so that the heap, the clocks and the place stay in registers.
#define INLINE __attribute__((always_inline)) inline

// The ready nodes as a binary heap of packed keys, largest first. `pop` leaves the top open, so that the first push
// after it replaces the top, instead of a leaf that moves there and is sifted down before the new key is sifted up.
class Heap {
 public:
  explicit Heap(uint32_t* entries) : entries_(entries) {}

  INLINE bool pop(uint32_t& key) {
    if (open_) close();
    if (size_ == 0) return false;
    key = entries_[0];
    open_ = true;
    return true;
  }

  INLINE void push(uint32_t key) {
    if (open_) {
      open_ = false;
      sift_down(key);
      return;
    }
    int i = size_++;
    while (i > 0) {
      const int parent = (i - 1) >> 1;
      if (entries_[parent] >= key) break;
      entries_[i] = entries_[parent];
      i = parent;
    }
    entries_[i] = key;
  }

 private:
  INLINE void close() {
    open_ = false;
    const uint32_t last = entries_[--size_];
    if (size_ > 0) sift_down(last);
  }

  INLINE void sift_down(uint32_t key) {
    entries_[size_] = 0;  // a sentinel beside the last entry, which may have no sibling
    int i = 0;
    for (int child; (child = 2 * i + 1) < size_; i = child) {
      child += entries_[child + 1] > entries_[child];
      if (entries_[child] <= key) break;
      entries_[i] = entries_[child];
    }
    entries_[i] = key;
  }

  uint32_t* entries_;
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
        heap_(graph.nodes() + 2),
        ops_(graph.ops),
        place_(graph.ops),
        last_(size_t(graph.tensors) * D),
        change_(size_t(graph.nodes() + 2) * D),
        workspace_(graph.has_workspace ? change_.size() : 0) {}

  Costs evaluate(const float* genes) {
    start(genes);
    Loop loop(heap_.data());
    for (int v = 0; v < g_.ops; v++) {
      if (ops_[v].waits == 0) loop.heap.push(ops_[v].key);
    }
    for (uint32_t top; loop.heap.pop(top);) {
      const int index = int(mask_ - (top & mask_));
      loop.place++;
      if (index < g_.ops) {
        run_op(loop, index);
      } else {
        run_transfer(loop, index - g_.ops);
      }
    }
    Costs costs;
    // no transfer ends after its readers
    if (timed) costs.makespan = *std::max_element(loop.free.begin(), loop.free.end());
    if (memory) find_peaks(loop.place, costs.peak);
    return costs;
  }

 private:
  struct OpState {
    float ready;     // latest arrival; end, once it ran
    int32_t waits;   // for so many inputs and control predecessors
    uint32_t key;    // packed
    int32_t device;
  };

  struct Loop {
    explicit Loop(uint32_t* entries) : heap(entries) {}
    Heap heap;
    std::array<float, D> free{}, link{};
    int place = 0;
  };

  void start(const float* genes) {
    const int n = g_.ops;
    const float* op_keys = genes + D * n;
    transfer_keys_ = op_keys + n;
    for (int v = 0; v < n; v++) {
      int best = 0;
      for (int d = 1; d < D; d++) best = genes[d * n + v] > genes[best * n + v] ? d : best;
      ops_[v] = {0.f, g_.waits[v], pack(op_keys[v], v), best};
    }
    if (memory) std::fill(last_.begin(), last_.end(), -1);
  }

  // Larger keys first, ties to the lower index. The product is exact and below 2^31: a power of two scales [0, 1).
  INLINE uint32_t pack(float key, int index) const {
    return uint32_t(int32_t(key * scale_)) << g_.index_bits | (mask_ - uint32_t(index));
  }

  INLINE void run_op(Loop& loop, int v) {
    OpState& op = ops_[v];
    const int here = op.device;
    float end = 0;
    if (timed) op.ready = loop.free[here] = end = std::max(loop.free[here], op.ready) + g_.runtime[v];
    if (memory) {
      place_[v] = loop.place;
      allocate(loop, here, g_.output_bytes[v], g_.workspace[v]);
    }
    for (int t = g_.first_tensor[v]; t < g_.first_tensor[v + 1]; t++) {
      if (memory) last_[t * D + here] = loop.place;
      const uint32_t readers = release_readers(loop, t, here, end);
      for (uint32_t left = readers & ~(uint32_t(1) << here); left != 0; left &= left - 1) {
        const int to = __builtin_ctz(left), index = g_.ops + t * (D - 1) + to - (to > here);
        loop.heap.push(pack(transfer_keys_[to * g_.tensors + t], index));
      }
    }
    for (int i = g_.waiters.begin[v]; i < g_.waiters.begin[v + 1]; i++) release(loop, ops_[g_.waiters.item[i]], true, end);
  }

  INLINE void run_transfer(Loop& loop, int index) {
    constexpr int foreign_devices = D > 1 ? D - 1 : 1;
    const int t = index / foreign_devices, foreign = index % foreign_devices;
    const OpState& producer = ops_[g_.producer[t]];
    const int from = producer.device, to = foreign + (from <= foreign);
    float end = 0;
    if (timed) {
      float begin = producer.ready;
      if (transfer == kRendezvous) begin = std::max({begin, loop.free[from], loop.free[to]});
      if (transfer == kLink) begin = std::max(begin, loop.link[from]);
      end = begin + g_.transfer_seconds[t];
      if (transfer == kRendezvous) loop.free[from] = loop.free[to] = end;
      if (transfer == kLink) loop.link[from] = end;
    }
    if (memory) {
      last_[t * D + from] = loop.place;
      allocate(loop, to, g_.bytes[t], 0);
    }
    release_readers(loop, t, to, end);
  }

  // Tells the tensor's readers on a device that it came. Returns the devices of all its readers, a bit each.
  INLINE uint32_t release_readers(Loop& loop, int t, int here, float end) {
    uint32_t devices = 0;
    for (int i = g_.readers.begin[t]; i < g_.readers.begin[t + 1]; i++) {
      OpState& op = ops_[g_.readers.item[i]];
      devices |= uint32_t(1) << op.device;
      release(loop, op, op.device == here, end);
    }
    return devices;
  }

  INLINE void release(Loop& loop, OpState& op, bool came, float end) {
    if (timed) op.ready = std::max(op.ready, came ? end : 0.f);
    op.waits -= came;
    if (came & (op.waits == 0)) loop.heap.push(op.key);
  }

  INLINE void allocate(const Loop& loop, int here, int64_t bytes, int64_t workspace) {
    for (int d = 0; d < D; d++) change_[loop.place * D + d] = d == here ? bytes : 0;
    if (!g_.has_workspace) return;
    for (int d = 0; d < D; d++) workspace_[loop.place * D + d] = d == here ? workspace : 0;
  }

  // A copy is freed after the place of the last node that needs it. Copies that never were end at -1: row 0 takes them.
  void find_peaks(int places, std::array<int64_t, D>& peak) {
    // one flat loop: loops over each op's inputs inside the decoding loop cost a branch miss each
    for (int i = 0; i < g_.uses; i++) {
      const int v = g_.use_op[i];
      int32_t& last = last_[g_.use_tensor[i] * D + ops_[v].device];
      last = std::max(last, place_[v]);
    }
    for (int d = 0; d < D; d++) change_[(places + 1) * D + d] = 0;
    for (int t = 0; t < g_.tensors; t++) {
      const int home = ops_[g_.producer[t]].device;
      for (int d = 0; d < D; d++) {
        change_[(last_[t * D + d] + 1) * D + d] -= d == home ? g_.freed_at_home[t] : g_.bytes[t];
      }
    }
    std::array<int64_t, D> live{};
    for (int i = 1; i <= places; i++) {
      for (int d = 0; d < D; d++) {
        live[d] += change_[i * D + d];
        peak[d] = std::max(peak[d], live[d] + (g_.has_workspace ? workspace_[i * D + d] : 0));
      }
    }
  }

  const Graph& g_;
  const uint32_t mask_;
  const float scale_;
  std::vector<uint32_t> heap_;
  std::vector<OpState> ops_;
  std::vector<int32_t> place_;      // [ops] in the order, from 1
  std::vector<int32_t> last_;       // [tensors][D] place of the last node that needs a copy
  std::vector<int64_t> change_;     // [places][D] bytes
  std::vector<int64_t> workspace_;  // [places][D] bytes
  const float* transfer_keys_ = nullptr;
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
