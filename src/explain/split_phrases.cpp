#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

constexpr Phrase kSplitPhrases[] = {
    {"title", "split: every picture goes to exactly one rank",
     "split: 모든 사진은 정확히 한 랭크에 갑니다"},
    {"summary", "how the pictures are dealt to the ranks: blocks, stride, DistributedSampler",
     "사진을 랭크에 나누는 방법: 블록, 간격, DistributedSampler"},
    {"rank", "rank", "랭크"},
    {"of", "of {0} pictures", "전체 {0}장 중"},
    {"count", "how many", "장수"},
    {"epoch", "epoch {0}", "에폭 {0}"},
    {"pictures", "pictures", "사진"},
    {"blocks",
     "In blocks, with pictures numbered from 1. Every rank works out its own part from its rank "
     "and the number of ranks; nobody has to deal the pictures out. Then each reports its part.",
     "블록으로 나누기(사진 번호는 1부터). 각 랭크는 자기 랭크 번호와 랭크 수만으로 자기 몫을 "
     "계산하므로, 누군가 사진을 나누어 줄 필요가 없습니다. 그런 다음 각자 자기 몫을 알립니다."},
    {"once",
     "Check: every rank counts the pictures it took, and an all-reduce adds the counts. Fewest "
     "times that a picture was dealt: {0}; most: {1}.",
     "확인: 각 랭크가 가져간 사진을 세고, all-reduce로 그 수를 더합니다. 사진 한 장이 배정된 "
     "횟수: 최소 {0}, 최대 {1}."},
    {"stride",
     "By stride, counting from 0 as programs do: rank r takes the pictures r, r + {0}, r + {1} "
     "and so on, like cards dealt around a table.",
     "일정한 간격으로 나누기(프로그램처럼 0부터 셉니다). 랭크 r은 r번 사진부터 랭크 수만큼 "
     "건너뛰며 가져갑니다(r, r + {0}, r + {1}, ...). 카드를 돌아가며 나누는 것과 같습니다."},
    {"why",
     "Why stride? Files are often sorted, and a block may hold only one kind of cat; a stride "
     "takes from everywhere. And the ranks' next pictures always lie side by side in the common "
     "order, so a step of all ranks together reads the same pictures however many ranks share "
     "them.",
     "왜 간격으로 나눌까요? 파일은 정렬되어 있는 경우가 많아서 한 블록에 한 종류의 고양이만 "
     "들어갈 수 있지만, 간격으로 나누면 전체에서 고르게 가져옵니다. 또한 랭크들이 다음에 읽을 "
     "사진이 공통 순서에서 항상 나란히 있으므로, 몇 개의 랭크가 나누어 맡든 한 스텝에서 함께 "
     "읽는 사진은 같습니다."},
    {"sampler",
     "DistributedSampler first shuffles all {0} pictures by (seed, epoch), the same way on "
     "every rank, and then takes a stride. A new epoch gives a new order. Pictures that changed "
     "their rank from epoch 0 to epoch 1: {1}.",
     "DistributedSampler는 먼저 사진 {0}장 전체를 (시드, 에폭)에 따라 모든 랭크에서 똑같이 "
     "섞고, 그다음 간격으로 나눕니다. 에폭이 바뀌면 순서도 바뀝니다. 에폭 0에서 1로 가면서 담당 "
     "랭크가 바뀐 사진 수: {1}."},
    {"plain_same",
     "With shuffle = false it deals exactly the stride above: all ranks found the same pictures "
     "in the same order.",
     "shuffle = false로 두면 위의 간격 나누기와 똑같습니다. 모든 랭크에서 같은 사진이 같은 "
     "순서로 나왔습니다."},
    {"plain_differ",
     "With shuffle = false it must deal exactly the stride above, but it did not: please report "
     "this as a bug.",
     "shuffle = false로 두면 위의 간격 나누기와 똑같아야 하지만 달랐습니다. 버그로 신고해 "
     "주십시오."},
    {"uneven",
     "{0} pictures cannot be shared equally by {1} ranks. A rank with one picture less would "
     "finish early, and the others would wait for it in all-reduce for ever; so the deal wraps "
     "around to the beginning. Pictures that are read twice: {2}. (Not shuffled here, to be "
     "easy to follow.)",
     "사진 {0}장은 랭크 {1}개로 나누어떨어지지 않습니다. 사진이 한 장 적은 랭크는 먼저 끝나고, "
     "나머지는 all-reduce에서 그 랭크를 영원히 기다리게 됩니다. 그래서 처음으로 돌아가 "
     "채웁니다. 두 번 읽는 사진: {2}. (따라가기 쉽도록 여기서는 섞지 않았습니다.)"},
    {"drop", "With drop_last = true the tail is left out instead. Pictures that nobody reads: {0}.",
     "drop_last = true로 두면 돌아가서 채우는 대신 남는 사진을 버립니다. 아무도 읽지 않는 사진: "
     "{0}."},
};

}  // namespace

Phrases split_phrases() {
  return kSplitPhrases;
}

}  // namespace lockstep::explain
