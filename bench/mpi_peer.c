// The ranks of an MPI that `lockstep bench allreduce` measures beside its own: MPI_Allreduce in
// place, on buffers that were written just before. Compiled by that MPI's own mpicc and started by
// its mpiexec: `mpiexec -n N mpi_peer @SOCKET`.
//
// Each rank connects to rank 0 of lockstep at SOCKET, says who it is, and then sleeps in read(2)
// until it is told to measure: a rank that waited inside of MPI would spin, and take a core from
// whoever is measured meanwhile. It answers with its stamps of the host's monotonic clock, which is
// the clock of lockstep's ranks too. bench_mpi_peer.h is the other side.

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kPeriod = 8, kMaxBatch = 64, kTextBytes = 160 };
enum { kLineBytes = 64, kPageBytes = 4096, kHugePageBytes = 2 << 20 };

// What lockstep sends; bytes == 0: nothing more will come.
struct Request {
  int64_t bytes;
  int64_t element_bytes;  // 4: float, 8: double
  int64_t batch;          // operations that follow each other, each on a buffer of its own
  int64_t warm_up;        // 1: as many operations before them, untimed
  int64_t first_salt;     // the number of the first operation
  int64_t check_all;      // 0: a cache line per page, and the end
};

// What a rank answers.
struct Answer {
  int64_t stamps_ns[kMaxBatch + 1];  // the begin, and the end of each operation
  char mistake[kTextBytes];          // empty: the results were right
};

static int rank, size;
static int control = -1;
static char* memory;
static int64_t memory_bytes;

static void fail(const char* what) {
  fprintf(stderr, "mpi_peer: rank %d: %s: %s\n", rank, what, strerror(errno));
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Returns 0 if lockstep has closed its end.
static int receive(void* data, size_t bytes) {
  for (size_t got = 0; got < bytes;) {
    const ssize_t n = read(control, (char*)data + got, bytes - got);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return 0;
    }
    got += (size_t)n;
  }
  return 1;
}

static void answer(const void* data, size_t bytes) {
  for (size_t sent = 0; sent < bytes;) {
    const ssize_t n = write(control, (const char*)data + sent, bytes - sent);
    if (n < 0 && errno != EINTR) {
      fail("lockstep does not listen any more");
    }
    sent += n > 0 ? (size_t)n : 0;
  }
}

// `name` begins with '@', which stands for the zero byte of a name that is no file.
static void connect_to(const char* name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const size_t length = strlen(name);
  if (name[0] != '@' || length > sizeof address.sun_path) {
    errno = EINVAL;
    fail(name);
  }
  memcpy(address.sun_path + 1, name + 1, length - 1);
  const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
  control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (control < 0 || connect(control, (struct sockaddr*)&address, bytes) != 0) {
    fail(name);
  }
  const int64_t hello[2] = {rank, size};
  answer(hello, sizeof hello);
}

// The values of bench_pattern.cpp: element i of a buffer is values[i % kPeriod].
static void add_values(int of_rank, uint64_t salt, int values[kPeriod]) {
  uint64_t mixed =
      (salt + 1) * 0x9E3779B97F4A7C15u + (uint64_t)of_rank * (uint64_t)0xD1B54A32D192ED03u;
  mixed ^= mixed >> 29;
  mixed *= 0xBF58476D1CE4E5B9u;
  mixed ^= mixed >> 32;
  for (int i = 0; i < kPeriod; ++i) {
    values[i] += (int)(mixed >> (2 * i) & 3);
  }
}

// A cache line of the pattern, in the type of the elements.
static void fill_line(char line[kLineBytes], const int values[kPeriod], int64_t element_bytes) {
  for (int64_t i = 0; i < kLineBytes / element_bytes; ++i) {
    const double wide = values[i % kPeriod];
    const float narrow = (float)wide;
    memcpy(line + i * element_bytes, element_bytes == 8 ? (const void*)&wide : (const void*)&narrow,
           (size_t)element_bytes);
  }
}

static char* buffer_of(const struct Request* request, int64_t slot) {
  return memory + slot * ((request->bytes + kLineBytes - 1) / kLineBytes * kLineBytes);
}

static void write_buffer(const struct Request* request, int64_t slot) {
  int values[kPeriod] = {0};
  add_values(rank, (uint64_t)(request->first_salt + slot), values);
  char line[kLineBytes];
  fill_line(line, values, request->element_bytes);
  char* buffer = buffer_of(request, slot);
  int64_t at = 0;
  for (; at + kLineBytes <= request->bytes; at += kLineBytes) {
    memcpy(buffer + at, line, kLineBytes);
  }
  memcpy(buffer + at, line, (size_t)(request->bytes - at));
}

static void check_buffer(const struct Request* request, int64_t slot, char mistake[kTextBytes]) {
  int values[kPeriod] = {0};
  for (int each = 0; each < size; ++each) {
    add_values(each, (uint64_t)(request->first_salt + slot), values);
  }
  char line[kLineBytes];
  fill_line(line, values, request->element_bytes);
  const char* buffer = buffer_of(request, slot);
  const int64_t stride = request->check_all ? kLineBytes : kPageBytes;
  const int64_t last = (request->bytes - 1) / kLineBytes * kLineBytes;
  for (int64_t at = 0; at <= last; at = at < last && at + stride > last ? last : at + stride) {
    const int64_t left = request->bytes - at;
    if (memcmp(buffer + at, line, (size_t)(left < kLineBytes ? left : kLineBytes)) != 0) {
      snprintf(mistake, kTextBytes, "one of the elements from %lld on is not the sum",
               (long long)(at / request->element_bytes));
      return;
    }
  }
}

// As libtorch allocates tensors in lockstep's ranks: from 2 MiB on in huge pages, where the system
// gives them.
static void reserve(int64_t bytes) {
  if (bytes <= memory_bytes) {
    return;
  }
  const int64_t page = bytes < kHugePageBytes ? kPageBytes : kHugePageBytes;
  free(memory);
  memory_bytes = (bytes + page - 1) / page * page;
  memory = aligned_alloc((size_t)page, (size_t)memory_bytes);
  if (memory == NULL) {
    fail("no memory for the buffers");
  }
  if (page == kHugePageBytes) {
    madvise(memory, (size_t)memory_bytes, MADV_HUGEPAGE);  // refused: pages as usual
  }
}

// One batch, as Measurement::run_batch() makes it.
static void run_batch(const struct Request* request, struct Answer* reply) {
  const MPI_Datatype type = request->element_bytes == 8 ? MPI_DOUBLE : MPI_FLOAT;
  const int count = (int)(request->bytes / request->element_bytes);
  for (int64_t slot = 0; slot < request->batch; ++slot) {
    write_buffer(request, slot);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  reply->stamps_ns[0] = now_ns();
  for (int64_t slot = 0; slot < request->batch; ++slot) {
    MPI_Allreduce(MPI_IN_PLACE, buffer_of(request, slot), count, type, MPI_SUM, MPI_COMM_WORLD);
    reply->stamps_ns[slot + 1] = now_ns();
  }
  MPI_Barrier(MPI_COMM_WORLD);  // nobody checks while another rank is still timed
  for (int64_t slot = 0; slot < request->batch && reply->mistake[0] == 0; ++slot) {
    check_buffer(request, slot, reply->mistake);
  }
}

static void serve(void) {
  struct Request request;
  while (receive(&request, sizeof request) && request.bytes > 0) {
    if (request.batch < 1 || request.batch > kMaxBatch) {
      errno = EINVAL;
      fail("the size of the batch");
    }
    struct Answer reply;
    memset(&reply, 0, sizeof reply);
    reserve((request.bytes + kLineBytes) * request.batch);
    if (request.warm_up) {
      run_batch(&request, &reply);
    }
    run_batch(&request, &reply);
    answer(&reply, sizeof reply);
  }
}

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives its mpiexec, whatever became of that
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 2) {
    fprintf(stderr, "mpi_peer: started by `lockstep bench allreduce --peer`, with one socket\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  connect_to(argv[1]);
  serve();
  free(memory);
  MPI_Finalize();
  return 0;
}
