#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

constexpr Phrase kPretrainedPhrases[] = {
    {"title", "pretrained: published weights, from shared storage into every rank",
     "pretrained: 공개된 가중치를 공유 스토리지에서 모든 랭크로 가져옵니다"},
    {"summary",
     "one file of weights into four ranks, in three ways: who reads, who sends, at what cost",
     "가중치 파일 하나를 네 랭크가 세 가지 방법으로 읽고, 누가 읽고 누가 보내는지 셉니다"},
    {"rank", "rank", "랭크"},
    {"mode", "way", "방법"},
    {"read", "read from storage", "스토리지에서 읽음"},
    {"times", "files' worth", "파일 몇 개 분량"},
    {"exchanged", "between ranks", "랭크끼리 주고받음"},
    {"sent", "sent to other nodes", "다른 노드로 보냄"},
    {"extra", "extra memory per rank", "랭크당 추가 메모리"},
    {"seconds", "seconds", "초"},
    {"start",
     "Step 0: the weights lie on shared storage: {0}, {1} in {2} tensors. {3} ranks on {4} nodes "
     "(emulated on this host: no memory is shared between them) wait for them; none holds a "
     "weight yet.",
     "0단계: 가중치는 공유 스토리지에 있습니다: {0} ({1}, 텐서 {2}개). 랭크 수 {3}, 노드 수 {4} "
     "(이 "
     "호스트에서 흉내 낸 노드로, 서로 메모리를 공유하지 않습니다). 아직 어느 랭크에도 가중치가 "
     "없습니다."},
    {"each",
     "Step 1, `each`: every rank opens the file and reads all of it, as programs without help do. "
     "Storage has to deliver {0} times the file: with many ranks it becomes the bottleneck.",
     "1단계, `each`: 모든 랭크가 파일을 열어 전부 읽습니다. 도움이 없는 프로그램은 이렇게 합니다. "
     "스토리지는 파일의 {0} 배를 내보내야 하므로, 랭크가 많아지면 병목이 됩니다."},
    {"rank0",
     "Step 2, `rank0`: rank 0 reads the file once and broadcasts it. Storage delivers {0} times "
     "the file, but one reader works while the others wait.",
     "2단계, `rank0`: 랭크 0만 파일을 한 번 읽어 broadcast합니다. 스토리지는 파일의 {0} 배를 "
     "내보내지만, 한 랭크가 읽는 동안 나머지는 기다립니다."},
    {"cooperative",
     "Step 3, `cooperative`: every rank reads its own part of the file, and the ranks pass the "
     "parts on through shared memory and, between nodes, over the network, a small window at a "
     "time. Storage delivers {0} times the file, to all ranks at once.",
     "3단계, `cooperative`: 랭크마다 파일의 자기 몫만 읽고, 공유 메모리로(노드 사이는 네트워크로) "
     "조금씩 나누어 서로 건넵니다. 스토리지는 모든 랭크에 동시에, 합쳐서 파일의 {0} 배를 "
     "내보냅니다."},
    {"compare", "Side by side, sums over all ranks; time is the slowest rank's:",
     "나란히 놓고 보면 다음과 같습니다. 양은 모든 랭크의 합, 시간은 가장 느린 랭크의 값입니다."},
    {"auto", "Left to itself (`auto`) the loader takes `{0}` here: {1}.",
     "맡겨 두면(`auto`) 여기서는 `{0}` 방법을 고릅니다: {1}."},
    {"equal",
     "Step 4, the proof: the hash of every bit of every weight, on every rank, after each of the "
     "three ways. Different models found: {0}.",
     "4단계, 증명: 세 방법 뒤에 모든 랭크에서 모든 가중치의 모든 비트로 해시를 계산했습니다. 서로 "
     "다른 모델의 수: {0}."},
    {"wrap",
     "Step 5: DistributedDataParallel broadcasts rank 0's weights once more, as a safeguard. "
     "Models that it changed: {0}. Every rank starts training from the same published weights.",
     "5단계: DistributedDataParallel이 안전장치로 랭크 0의 가중치를 한 번 더 broadcast합니다. "
     "이때 바뀐 모델의 수: {0}. 모든 랭크가 같은 공개 가중치에서 학습을 시작합니다."},
};

}  // namespace

Phrases pretrained_phrases() {
  return kPretrainedPhrases;
}

}  // namespace lockstep::explain
