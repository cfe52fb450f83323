#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

constexpr Phrase kScratchPhrases[] = {
    {"title", "scratch: a model that is made in code, equal on every rank from the first moment",
     "scratch: 코드로 만든 모델이 처음부터 모든 랭크에서 같습니다"},
    {"summary", "every rank makes the same new model from seed 42, without storage or network",
     "모든 랭크가 시드 42로 같은 새 모델을 만듭니다. 스토리지도 네트워크도 쓰지 않습니다"},
    {"rank", "rank", "랭크"},
    {"node", "node", "노드"},
    {"first", "first weights", "처음 몇 개의 가중치"},
    {"hash", "hash of all bits", "전체 비트의 해시"},
    {"reads", "read calls", "읽기 호출"},
    {"sent", "sent to other nodes", "다른 노드로 보냄"},
    {"start",
     "Step 0, before training: there is no model file anywhere. Ranks {0}, on {1} nodes (emulated "
     "on this host: no memory is shared between them), and none holds a model yet.",
     "0단계, 학습 전: 모델 파일은 어디에도 없습니다. 랭크 수 {0}, 노드 수 {1} (이 호스트에서 "
     "흉내 낸 노드로, 서로 메모리를 공유하지 않습니다). 아직 어느 랭크에도 모델이 없습니다."},
    {"make",
     "Step 1: every rank makes MyTransformer (Embedding(30000, 512), 12 blocks, "
     "Linear(512, 30000): {0} parameters) from seed {1}. The numbers come out of a formula, not "
     "out of a file. All this happens before the ranks say one word to each other.",
     "1단계: 모든 랭크가 MyTransformer(Embedding(30000, 512), 블록 12개, Linear(512, 30000): "
     "파라미터 {0}개)를 시드 {1} 값으로 만듭니다. 숫자는 파일이 아니라 수식에서 나옵니다. 여기까지 "
     "랭크들은 서로 한마디도 주고받지 않습니다."},
    {"counts",
     "What that cost, as the kernel and the group counted it: reads from storage {0}, bytes to "
     "other nodes {1}, memory {2} per rank, {3} s on the slowest rank.",
     "커널과 그룹이 센 비용: 스토리지 읽기 {0}, 다른 노드로 보낸 바이트 {1}, 랭크당 메모리 {2}, "
     "가장 느린 랭크 {3} 초."},
    {"equal",
     "The hashes were compared only afterwards, and they are equal: same seed, same formula, "
     "same bits.",
     "해시는 만든 뒤에야 비교했고, 모두 같습니다. 시드가 같고 수식이 같으면 비트도 같습니다."},
    {"unequal",
     "The hashes differ, which must not happen on machines of one kind: please report this as a "
     "bug. DistributedDataParallel mends it in the next step.",
     "해시가 다릅니다. 같은 종류의 기계에서는 일어나서는 안 되는 일이니 버그로 신고해 주십시오. "
     "다음 단계에서 DistributedDataParallel이 바로잡습니다."},
    {"wrap",
     "Step 2: DistributedDataParallel broadcasts rank 0's weights all the same. It is a seat "
     "belt: whatever values a rank began with, after another seed say, are overwritten here, and "
     "a model whose names or shapes differ is refused. It took {0} s and sent {1} to other nodes; "
     "models that it "
     "changed: {2}.",
     "2단계: 그래도 DistributedDataParallel은 랭크 0의 가중치를 broadcast합니다. 안전벨트입니다. "
     "다른 시드로 시작한 랭크가 있다면 그 값은 여기서 랭크 0의 값으로 덮어쓰이고, 이름이나 모양이 "
     "다른 모델은 거부됩니다. "
     "걸린 시간 {0} 초, 다른 노드로 보낸 양 {1}, 이때 바뀐 모델의 수: {2}."},
    {"ready", "Step 3, ready: different models on {0} ranks: {1}. Reads from storage in all: {2}.",
     "3단계, 준비 완료: 랭크 수 {0}, 서로 다른 모델의 수 {1}. 스토리지 읽기 합계: {2}."},
};

}  // namespace

Phrases scratch_phrases() {
  return kScratchPhrases;
}

}  // namespace lockstep::explain
