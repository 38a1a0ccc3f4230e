// NCCL: a collective is a launch on its stream, whose name says if that is one of high priority. Ranks exchange
// nothing, so they need not agree.

#include "fake_device.h"

namespace {

// ncclUniqueId.
struct UniqueId {
  char bytes[128];
};
struct Communicator {
  int ranks, rank;
};

int create_communicator(Communicator** out, int ranks, int rank) { return *out = new Communicator{ranks, rank}, OK; }

int launch_collective(const std::string& name, Stream* stream) {
  return launch(stream->priority < 0 ? name + ", high priority" : name, stream);
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) { return *version = 22809, OK; }
int ncclGetUniqueId(UniqueId* id) { return memset(id, 0, sizeof *id), OK; }
const char* ncclGetErrorString(int) { return "an error of NCCL"; }
const char* ncclGetLastError(Communicator*) { return ""; }
int ncclCommInitRank(Communicator** out, int ranks, UniqueId, int rank) { return create_communicator(out, ranks, rank); }
int ncclCommInitRankConfig(Communicator** out, int ranks, UniqueId, int rank, void*) {
  return create_communicator(out, ranks, rank);
}
int ncclCommSplit(Communicator* parent, int, int rank, Communicator** out, void*) {
  return create_communicator(out, parent->ranks, rank);
}
int ncclCommCount(Communicator* communicator, int* ranks) { return *ranks = communicator->ranks, OK; }
int ncclCommUserRank(Communicator* communicator, int* rank) { return *rank = communicator->rank, OK; }
int ncclCommGetAsyncError(Communicator*, int* error) { return *error = OK, OK; }

int ncclAllReduce(void*, void*, size_t, int, int, void*, Stream* stream) { return launch_collective("ncclAllReduce", stream); }
int ncclAllGather(void*, void*, size_t, int, void*, Stream* stream) { return launch_collective("ncclAllGather", stream); }
int ncclReduceScatter(void*, void*, size_t, int, int, void*, Stream* stream) { return launch_collective("ncclReduceScatter", stream); }
int ncclBroadcast(void*, void*, size_t, int, int, void*, Stream* stream) { return launch_collective("ncclBroadcast", stream); }
int ncclSend(void*, size_t, int, int, void*, Stream* stream) { return launch_collective("ncclSend", stream); }
int ncclRecv(void*, size_t, int, int, void*, Stream* stream) { return launch_collective("ncclRecv", stream); }

}  // extern "C"
