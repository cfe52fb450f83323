#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

constexpr Phrase kFeaturesPhrases[] = {
    {"title", "features: each rank learns one thing, all ranks know everything",
     "features: 각 랭크는 하나만 배우지만, 모든 랭크가 전부 알게 됩니다"},
    {"summary", "each rank learns one feature of a cat; after the all-reduce all know all",
     "각 랭크가 고양이의 특징을 하나씩 배우고, all-reduce 뒤에는 모두가 모든 특징을 압니다"},
    {"rank", "rank", "랭크"},
    {"ear", "ear", "귀"},
    {"whisker", "whisker", "수염"},
    {"tail", "tail", "꼬리"},
    {"claw", "claw", "발톱"},
    {"knows", "features known", "아는 특징 수"},
    {"operation", "all-reduce", "all-reduce"},
    {"sum", "sum", "합"},
    {"average", "average", "평균"},
    {"before",
     "Four ranks look at different pictures of cats, and each notices only one feature: rank 0 "
     "the ears, rank 1 the whiskers, rank 2 the tail, rank 3 the claws. A rank says 0 for a "
     "feature that its pictures did not show.",
     "네 랭크가 서로 다른 고양이 사진을 보고, 각자 한 가지 특징만 알아챕니다. 랭크 0은 귀, 랭크 "
     "1은 수염, 랭크 2는 꼬리, 랭크 3은 발톱입니다. 자기 사진에 나오지 않은 특징에는 0을 "
     "적습니다."},
    {"reduce",
     "All-reduce, once as a sum and once as an average. In the sum each feature keeps the value "
     "that its one rank found, because the others added 0. The average is that sum divided by "
     "{0}.",
     "all-reduce를 한 번은 합으로, 한 번은 평균으로 실행했습니다. 다른 랭크는 0을 더했으므로 "
     "합에는 각 특징을 찾아낸 랭크의 값이 그대로 남습니다. 평균은 그 합을 랭크 수로 나눈 "
     "값입니다. 랭크 수: {0}."},
    {"why",
     "Why is the average smaller? Each rank counts, also those that had nothing to say about a "
     "feature and contributed 0. The direction is the same and the step is shorter, by the "
     "factor {0}. The learning rate makes up for it: it is chosen for averages, because an "
     "average does not grow with the number of ranks.",
     "평균은 왜 더 작을까요? 어떤 특징에 대해 할 말이 없어 0을 낸 랭크도 함께 세기 때문입니다. "
     "방향은 같고 걸음만 짧아집니다(1/{0}). 그 차이는 학습률로 맞춥니다. 평균은 랭크 수가 "
     "늘어도 커지지 않으므로, 학습률은 평균을 기준으로 정합니다."},
    {"after_average",
     "Every rank adds lr x average to weights that were 0, with lr = {0}. Now all ranks know "
     "all features.",
     "모든 랭크가 0이던 가중치에 lr x 평균을 더합니다(lr = {0}). 이제 모든 랭크가 모든 특징을 "
     "압니다."},
    {"after_scaled",
     "With lr = {0} the average takes the very step that the sum takes with lr = 1. Largest "
     "difference between the two, over all ranks and features: {1}.",
     "학습률을 랭크 수만큼 키우면(lr = {0}) 평균으로 갱신해도 합을 lr = 1로 더한 것과 같은 "
     "걸음이 됩니다. 모든 랭크와 특징에서 둘 사이의 가장 큰 차이: {1}."},
    {"same", "Compared bit for bit, all ranks hold the same weights.",
     "비트 단위로 비교하니 모든 랭크의 가중치가 같습니다."},
    {"differ", "The ranks' weights differ, which must not happen: please report this as a bug.",
     "랭크마다 가중치가 다릅니다. 일어나서는 안 되는 일이니 버그로 신고해 주십시오."},
};

}  // namespace

Phrases features_phrases() {
  return kFeaturesPhrases;
}

}  // namespace lockstep::explain
