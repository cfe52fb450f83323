#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

constexpr Phrase kReplicatePhrases[] = {
    {"title", "replicate: every rank starts from the same weights",
     "replicate: 모든 랭크가 같은 가중치에서 시작합니다"},
    {"summary", "different random weights on each rank, until rank 0's are broadcast to all",
     "랭크마다 다르던 무작위 가중치를 랭크 0의 값으로 통일합니다(broadcast)"},
    {"rank", "rank", "랭크"},
    {"seed", "seed", "시드"},
    {"elements", "elements", "원소 수"},
    {"first", "first weights", "처음 몇 개의 가중치"},
    {"hash", "hash of all bits", "전체 비트의 해시"},
    {"random",
     "Every rank builds the same small network and fills it with random weights from a seed of "
     "its own. Different models found: {0}. The hash is computed from every bit of every "
     "weight; if one bit changes, so does the hash.",
     "모든 랭크가 같은 모양의 작은 신경망을 만들고, 각자 다른 시드로 무작위 가중치를 채웁니다. "
     "서로 다른 모델의 수: {0}. 해시는 모든 가중치의 모든 비트로 계산하므로, 한 비트만 바뀌어도 "
     "해시가 달라집니다."},
    {"why",
     "If training began like this, even equal gradients would keep the models apart: equal "
     "steps from different places end in different places.",
     "이대로 학습을 시작하면 그래디언트가 같아도 모델은 계속 다릅니다. 서로 다른 곳에서 같은 "
     "걸음을 걸으면 서로 다른 곳에 도착하기 때문입니다."},
    {"broadcast",
     "Broadcast: rank 0 sends its weights, all others overwrite theirs with them. Different "
     "models now: {0}.",
     "broadcast: 랭크 0이 자기 가중치를 보내고, 나머지 랭크는 자기 가중치를 그 값으로 "
     "덮어씁니다. 이제 서로 다른 모델의 수: {0}."},
    {"same",
     "All ranks report the same number of elements and the same hash, and the gathered weights "
     "are equal bit for bit: every rank holds rank 0's model.",
     "모든 랭크가 같은 원소 수와 같은 해시를 보고했고, 모아서 비교한 가중치도 비트 단위로 "
     "같습니다. 모든 랭크가 랭크 0의 모델을 가지고 있습니다."},
    {"differ",
     "The ranks' weights differ after the broadcast, which must not happen: please report this "
     "as a bug.",
     "broadcast 뒤에도 랭크마다 가중치가 다릅니다. 일어나서는 안 되는 일이니 버그로 신고해 "
     "주십시오."},
    {"wrapper",
     "DistributedDataParallel does this by itself when a model is given to it. Tried on new, "
     "different models: {0} before, {1} after wrapping.",
     "DistributedDataParallel은 모델을 받을 때 이 일을 스스로 합니다. 서로 다른 새 모델로 "
     "확인했습니다. 서로 다른 모델의 수: 감싸기 전 {0}, 감싼 뒤 {1}."},
};

}  // namespace

Phrases replicate_phrases() {
  return kReplicatePhrases;
}

}  // namespace lockstep::explain
