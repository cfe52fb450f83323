// Fine-tuning: published weights on every rank, a new head, a few steps together, and a folder that
// transformers loads.
//
//   lockstep run --nproc-per-node 4 build/release/bin/05_pretrained bert-base-uncased my-classifier

#include <torch/torch.h>

#include <lockstep/lockstep.h>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: 05_pretrained FOLDER_OF_A_BERT [FOLDER_TO_WRITE]" << std::endl;
    return 2;
  }
  auto group = lockstep::init();
  auto pretrained = lockstep::AutoModel::from_pretrained(
      argv[1], group, {.architecture = "BertForSequenceClassification", .num_labels = 2});
  auto model = pretrained.as<lockstep::BertForSequenceClassification>();
  model->train();
  lockstep::DistributedDataParallel ddp(model, group);
  torch::optim::AdamW optimizer(model->parameters(), 5e-3);  // for a real one rather 2e-5

  // Every rank has sentences of its own; those that begin with a high token are of class 1.
  torch::manual_seed(group.rank());
  auto ids = torch::randint(1, 97, {16, 12}, torch::kLong);
  auto labels = ids.select(1, 0).gt(48).to(torch::kLong);
  double first_loss = 0;
  double loss_now = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(ddp(lockstep::BertInput{.ids_BT = ids}), labels);
    loss.backward();
    optimizer.step();
    loss_now = loss.item<double>();
    first_loss = step == 0 ? loss_now : first_loss;
  }
  ddp.verify();  // throws if the ranks' models are not equal, bit for bit
  if (group.rank() == 0 && argc > 2) {
    lockstep::save_pretrained(*model, argv[2]);
  }
  std::cout << "rank " << group.rank() << ": " << pretrained.report().missing.size()
            << " tensors were new, " << (loss_now < first_loss / 2 ? "it learned" : "it did not")
            << " (loss " << first_loss << " to " << loss_now << ")" << std::endl;
}
