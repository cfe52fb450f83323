#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

constexpr Phrase kAveragePhrases[] = {
    {"title", "average: different gradients become one average",
     "average: 서로 다른 그래디언트가 하나의 평균이 됩니다"},
    {"summary", "how all-reduce averages the gradients, and what the weights become",
     "all-reduce로 그래디언트를 평균 내고, 그 평균으로 가중치를 바꿉니다"},
    {"rank", "rank", "랭크"},
    {"weight", "weight", "가중치"},
    {"ear", "ear", "귀"},
    {"whisker", "whisker", "수염"},
    {"eye", "eye", "눈"},
    {"numbered", "w{0}", "w{0}"},
    {"parameter", "param {0}", "파라미터 {0}"},
    {"sum", "sum of all ranks / number of ranks", "모든 랭크의 합 / 랭크 수"},
    {"average", "average", "평균"},
    {"start",
     "Ranks: {0}. Each rank is a process of its own with a copy of the same model. They all "
     "start from the same weights: {1}.",
     "랭크 수: {0}. 각 랭크는 독립된 프로세스이며 같은 모델의 복사본을 가집니다. 모든 랭크는 "
     "같은 가중치에서 시작합니다. 시작 가중치: {1}."},
    {"gradients",
     "Every rank looks only at its own pictures, so every rank finds its own gradient. Here a "
     "gradient is written as the improvement itself: how much each weight should grow.",
     "각 랭크는 자기 사진만 보므로 랭크마다 다른 그래디언트를 얻습니다. 여기서는 그래디언트를 "
     "'고칠 양' 그 자체로 적었습니다. 즉, 각 가중치를 얼마나 키워야 하는지를 나타냅니다."},
    {"gradients_descend",
     "Every rank looks only at its own data, so every rank finds its own gradient of the loss. "
     "Such a gradient points uphill, to where the loss grows.",
     "각 랭크는 자기 데이터만 보므로 랭크마다 다른 손실의 그래디언트를 얻습니다. 이 "
     "그래디언트는 오르막, 즉 손실이 커지는 방향을 가리킵니다."},
    {"reduce",
     "All-reduce: the ranks add their gradients up and divide by the number of ranks. Every "
     "rank receives the result, not only one of them.",
     "all-reduce: 랭크들이 그래디언트를 모두 더한 뒤 랭크 수로 나눕니다. 결과는 한 랭크만이 "
     "아니라 모든 랭크가 받습니다."},
    {"same",
     "Each rank then reported the average it holds. Compared bit for bit, all ranks hold the same.",
     "이어서 각 랭크가 자신이 가진 평균을 알렸습니다. 비트 단위로 비교하니 모든 랭크의 값이 "
     "같습니다."},
    {"differ",
     "Each rank then reported the average it holds. They differ, which must not happen: please "
     "report this as a bug.",
     "이어서 각 랭크가 자신이 가진 평균을 알렸습니다. 값이 서로 다릅니다. 일어나서는 안 되는 "
     "일이니 버그로 신고해 주십시오."},
    {"update",
     "Every rank computes weights + lr x average, with lr = {0}. Same weights before and same "
     "average: so the weights are the same afterwards, without being sent.",
     "모든 랭크가 가중치 + lr x 평균을 계산합니다(lr = {0}). 이전 가중치도 같고 평균도 "
     "같으므로, 가중치를 서로 보내지 않아도 결과가 모두 같습니다."},
    {"update_descend",
     "Every rank computes weights - lr x average, with lr = {0}: downhill, against the "
     "gradient. Same weights before and same average: so the weights are the same afterwards, "
     "without being sent.",
     "모든 랭크가 가중치 - lr x 평균을 계산합니다(lr = {0}). 그래디언트의 반대 방향, 즉 "
     "내리막으로 갑니다. 이전 가중치도 같고 평균도 같으므로, 가중치를 서로 보내지 않아도 결과가 "
     "모두 같습니다."},
    {"again",
     "Second iteration, from the new weights. To keep the example small each rank still sees "
     "the same pictures and finds the same gradient again; in real training it is computed anew "
     "and becomes smaller as the model improves. The average is added once more: {0}.",
     "두 번째 반복은 새 가중치에서 시작합니다. 예를 단순하게 하려고 각 랭크가 같은 사진에서 "
     "같은 그래디언트를 다시 얻는다고 둡니다. 실제 학습에서는 매번 새로 계산하며, 모델이 "
     "나아질수록 작아집니다. 평균을 한 번 더 더합니다. 평균: {0}."},
    {"again_descend",
     "Second iteration, from the new weights. To keep the example small each rank finds the "
     "same gradient again; in real training it is computed anew. The average is subtracted once "
     "more: {0}.",
     "두 번째 반복은 새 가중치에서 시작합니다. 예를 단순하게 하려고 각 랭크가 같은 그래디언트를 "
     "다시 얻는다고 둡니다. 실제 학습에서는 매번 새로 계산합니다. 평균을 한 번 더 뺍니다. 평균: "
     "{0}."},
    {"example",
     "A second example, as training really does it. Every rank calls backward() on its own loss "
     "and gets the gradient of that loss.",
     "두 번째 예는 실제 학습 방식 그대로입니다. 각 랭크가 자기 손실에 대해 backward()를 "
     "호출하여 그 손실의 그래디언트를 얻습니다."},
    {"example_average", "All-reduce averages them, as before.",
     "앞에서와 같이 all-reduce로 평균을 냅니다."},
    {"descend",
     "param -= lr x average, with lr = {0}. Why add in the first example and subtract here? The "
     "gradient of a loss points uphill, to where the loss grows, so training goes the other way "
     "and subtracts. The first example wrote down the improvement itself, so it was added.",
     "param -= lr x 평균을 계산합니다(lr = {0}). 첫 번째 예에서는 더했는데 왜 여기서는 뺄까요? "
     "손실의 그래디언트는 오르막, 즉 손실이 커지는 방향을 가리키므로 학습은 그 반대로 가야 "
     "하고, 그래서 뺍니다. 첫 번째 예는 '고칠 양' 그 자체를 적었기 때문에 더했습니다."},
};

}  // namespace

Phrases average_phrases() {
  return kAveragePhrases;
}

}  // namespace lockstep::explain
