"""Train one of eight models on made-up data, as anybody would: ``train.py NAME [--small]``."""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

STEPS = 100_000


class Bottleneck(nn.Module):
    def __init__(self, n_in, width, stride=1):
        super().__init__()
        n_out = 4 * width
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or n_in != n_out:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(n_out))

    def forward(self, x):
        same = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += same
        return self.relu(x)


class ResNet(nn.Module):
    def __init__(self, blocks=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        n_in, layers = width, []
        for stage, count in enumerate(blocks):
            own = width << stage
            layer = []
            for block in range(count):
                layer.append(Bottleneck(n_in, own, 2 if stage and not block else 1))
                n_in = 4 * own
            layers.append(nn.Sequential(*layer))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(n_in, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class LanguageModel(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        hidden, _ = self.lstm(self.embedding(x))
        return self.head(hidden)


def images(batch, pixels, classes):
    """Return 8 batches of images and classes."""
    n = 8 * batch
    return TensorDataset(torch.randn(n, 3, pixels, pixels), torch.randint(0, classes, (n,)))


def texts(batch, length, words):
    """Return 8 batches of texts, each its own label."""
    x = torch.randint(0, words, (8 * batch, length))
    return TensorDataset(x, x)


def resnet50(small):
    batch, pixels = (4, 64) if small else (64, 224)
    model = ResNet((1, 1, 1, 1), 16) if small else ResNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    return model, optimizer, images(batch, pixels, 1000), batch, None, classify


def gpt2(small):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=512) if small else GPT2Config()
    model = GPT2LMHeadModel(config)
    batch, length = (2, 32) if small else (8, 1024)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    return (
        model,
        optimizer,
        texts(batch, length, config.vocab_size),
        batch,
        torch.bfloat16,
        own_loss,
    )


def bert(small):
    from transformers import BertConfig, BertForMaskedLM

    tiny = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    tiny |= {"intermediate_size": 128, "vocab_size": 512}
    config = BertConfig(**tiny) if small else BertConfig()
    model = BertForMaskedLM(config)
    batch, length = (2, 32) if small else (32, 256)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, texts(batch, length, config.vocab_size), batch, None, own_loss


def llama(small):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
    if small:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
    model = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False)).to(torch.bfloat16)
    batch, length = (2, 32) if small else (4, 2048)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    words = sizes["vocab_size"]
    return model, optimizer, texts(batch, length, words), batch, None, own_loss


def vit(small):
    from transformers import ViTConfig, ViTForImageClassification

    tiny = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    tiny |= {"intermediate_size": 128, "image_size": 64}
    config = ViTConfig(**tiny if small else {}, num_labels=1000)
    model = ViTForImageClassification(config)
    torch.set_float32_matmul_precision("high")
    batch = 2 if small else 64
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=torch.cuda.is_available())
    return model, optimizer, images(batch, config.image_size, 1000), batch, None, classify


def t5(small):
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12}
    if small:
        sizes = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4}
    words = 512 if small else 32128
    config = T5Config(**sizes, vocab_size=words, decoder_start_token_id=0, use_cache=False)
    model = T5ForConditionalGeneration(config)
    batch, length = (2, 32) if small else (16, 512)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, texts(batch, length, words), batch, torch.bfloat16, own_loss


def convnext(small):
    from transformers import ConvNextConfig, ConvNextForImageClassification

    tiny = {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]}
    config = ConvNextConfig(**tiny if small else {}, num_labels=1000)
    model = ConvNextForImageClassification(config)
    batch, pixels = (2, 64) if small else (64, 224)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, images(batch, pixels, 1000), batch, torch.bfloat16, classify


def lstm(small):
    words, width, batch, length = (500, 64, 4, 16) if small else (10_000, 1024, 64, 128)
    model = LanguageModel(words, width, 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return model, optimizer, texts(batch, length, words), batch, None, next_word


def classify(model, x, y):
    out = model(x)
    return cross_entropy(getattr(out, "logits", out), y)


def next_word(model, x, y):
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


def own_loss(model, x, y):
    return model(input_ids=x, labels=y).loss


MODELS = {
    "resnet50": resnet50, "gpt2": gpt2, "bert": bert, "llama-1b": llama, "vit": vit, "lstm": lstm,
    "t5": t5, "convnext": convnext,
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        model, optimizer, data, batch, low, loss_of = MODELS[given.model](given.small)
    model.to(device).train()
    loader = DataLoader(data, batch_size=batch)
    for _ in range(STEPS):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast(device.type, low, enabled=low is not None):
                loss = loss_of(model, x.to(device), y.to(device))
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
