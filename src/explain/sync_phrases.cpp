#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

constexpr Phrase kSyncPhrases[] = {
    {"title", "sync: without synchronisation four models, with it one",
     "sync: 동기화가 없으면 모델이 넷, 동기화하면 하나입니다"},
    {"summary", "the same training on four ranks, without and with synchronised gradients",
     "네 랭크에서 같은 학습을 그래디언트 동기화 없이 한 번, 동기화하여 한 번 실행합니다"},
    {"rank", "rank", "랭크"},
    {"rank_number", "rank {0}", "랭크 {0}"},
    {"step", "step", "스텝"},
    {"ear", "ear", "귀"},
    {"whisker", "whisker", "수염"},
    {"eye", "eye", "눈"},
    {"without", "loss without sync", "동기화 없음: 손실"},
    {"with", "loss with sync", "동기화: 손실"},
    {"data",
     "Four ranks train the same small model: is this a cat, judged by ear, whisker and eye? "
     "Each rank has {0} pictures of its own. Rank 0's differ mostly in the ears, rank 1's in "
     "the whiskers, rank 2's in the eyes, rank 3's in all three a little. The table shows how "
     "strongly each feature varies there.",
     "네 랭크가 같은 작은 모델을 학습합니다. 귀, 수염, 눈을 보고 고양이인지 판단하는 "
     "모델입니다. 랭크마다 자기 사진이 있습니다(각 {0}장). 랭크 0의 사진은 주로 귀가, 랭크 1은 "
     "수염이, 랭크 2는 눈이 서로 다르고, 랭크 3은 세 가지가 모두 조금씩 다릅니다. 표는 각 "
     "특징이 얼마나 크게 변하는지를 보여 줍니다."},
    {"apart",
     "Without synchronisation: every rank starts from the same weights and takes {0} steps "
     "(backward, SGD with lr = {1}) on its own pictures. The weights ear, whisker, eye along "
     "the way:",
     "동기화 없이: 모든 랭크가 같은 가중치에서 시작하여 자기 사진으로만 학습합니다(스텝 수 {0}, "
     "매 스텝 backward와 SGD, lr = {1}). 학습이 진행되는 동안의 가중치(귀, 수염, 눈):"},
    {"apart_result",
     "Different models at the end: {0}. Each rank learned what its own pictures show and little "
     "else, like four pupils who each study one subject.",
     "마지막에 남은 서로 다른 모델의 수: {0}. 각 랭크는 자기 사진이 보여 주는 것만 배우고 "
     "나머지는 거의 배우지 못했습니다. 한 과목씩만 공부한 네 학생과 같습니다."},
    {"together",
     "With synchronisation: the same start, the same pictures, the same steps. But now the "
     "model is wrapped in DistributedDataParallel, which averages the gradients of all ranks "
     "during backward, before every step.",
     "동기화하여: 시작도, 사진도, 스텝도 같습니다. 다만 이번에는 모델을 "
     "DistributedDataParallel로 감쌌습니다. 그러면 매 스텝 backward 중에 모든 랭크의 "
     "그래디언트를 평균 냅니다."},
    {"same",
     "Different models at the end: {0}. Compared bit for bit, all ranks hold the same weights.",
     "마지막에 남은 서로 다른 모델의 수: {0}. 비트 단위로 비교하니 모든 랭크의 가중치가 같습니다."},
    {"differ",
     "Different models at the end: {0}. Synchronised ranks must not differ: please report this "
     "as a bug.",
     "마지막에 남은 서로 다른 모델의 수: {0}. 동기화한 랭크는 달라져서는 안 됩니다. 버그로 "
     "신고해 주십시오."},
    {"losses",
     "Each rank's final models, judged on the pictures of all ranks together (a smaller loss is "
     "better):",
     "각 랭크의 최종 모델을 모든 랭크의 사진 전체로 평가했습니다(손실이 작을수록 좋습니다)."},
    {"one_process",
     "One process that trains on all {0} pictures ends in the same place. Largest difference "
     "between its weights and the synchronised ones: {1}. That is rounding: the same sums, "
     "taken in another order.",
     "프로세스 하나가 전체 사진({0}장)으로 학습해도 같은 곳에 도달합니다. 그 가중치와 동기화한 "
     "가중치의 가장 큰 차이: {1}. 같은 합을 다른 순서로 더해서 생긴 반올림 차이입니다."},
};

}  // namespace

Phrases sync_phrases() {
  return kSyncPhrases;
}

}  // namespace lockstep::explain
