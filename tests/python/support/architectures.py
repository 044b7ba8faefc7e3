"""Small models of transformers, whose modules and names are those of the large ones."""

from collections.abc import Callable

import transformers as T
from torch import nn

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
DECODER = SIZES | {"num_key_value_heads": 2, "vocab_size": 90}
POSITIONS = {"d_model": 64, "max_position_embeddings": 64, "encoder_layers": 1, "decoder_layers": 1} | {
    f"{side}_{what}": size
    for side in ("encoder", "decoder")
    for what, size in (("ffn_dim", 64), ("attention_heads", 4))
}

ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: T.BertForMaskedLM(T.BertConfig(**SIZES, max_position_embeddings=32, vocab_size=90)),
    "bert classifier": lambda: T.BertForSequenceClassification(
        T.BertConfig(**SIZES, max_position_embeddings=32, vocab_size=90, num_labels=2)
    ),
    "bert body": lambda: T.BertModel(T.BertConfig(**SIZES, max_position_embeddings=32, vocab_size=90)),
    "roberta classifier": lambda: T.RobertaForSequenceClassification(T.RobertaConfig(**SIZES, vocab_size=90)),
    "xlm-roberta classifier": lambda: T.XLMRobertaForSequenceClassification(T.XLMRobertaConfig(**SIZES, vocab_size=90)),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=96, vocab_size=90)),
    "gpt2 classifier": lambda: T.GPT2ForSequenceClassification(
        T.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=32, vocab_size=90)
    ),
    "marian": lambda: T.MarianMTModel(
        T.MarianConfig(**POSITIONS, vocab_size=90, decoder_vocab_size=90, pad_token_id=89)
    ),
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**DECODER)),
    "mixtral": lambda: T.MixtralForCausalLM(T.MixtralConfig(**DECODER, num_local_experts=3)),
    "qwen3-moe": lambda: T.Qwen3MoeForCausalLM(T.Qwen3MoeConfig(**DECODER, num_experts=3, moe_intermediate_size=20)),
    "deepseek-v3": lambda: T.DeepseekV3ForCausalLM(
        T.DeepseekV3Config(
            **DECODER | {"num_key_value_heads": 4},
            **{"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
            moe_intermediate_size=20,
            first_k_dense_replace=0,
        )
    ),
    "gpt-oss": lambda: T.GptOssForCausalLM(T.GptOssConfig(**DECODER, num_local_experts=3, head_dim=8)),
    "llama4": lambda: T.Llama4ForCausalLM(
        T.Llama4TextConfig(**DECODER, intermediate_size_mlp=48, num_local_experts=3, head_dim=8, moe_layers=[0])
    ),
    "dbrx": lambda: T.DbrxForCausalLM(
        T.DbrxConfig(
            **{"d_model": 32, "n_heads": 4, "n_layers": 1, "max_seq_len": 32, "vocab_size": 90},
            attn_config={"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
            ffn_config={"hidden_size": 32, "ffn_hidden_size": 24, "moe_num_experts": 3, "moe_top_k": 1},
        )
    ),
    "xlnet": lambda: T.XLNetForSequenceClassification(
        T.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=48, vocab_size=90, num_labels=3)
    ),
    "recurrent-gemma": lambda: T.RecurrentGemmaForCausalLM(
        T.RecurrentGemmaConfig(**DECODER | {"num_hidden_layers": 2}, lru_width=32, head_dim=8)
    ),
    "musicgen": lambda: T.MusicgenForCausalLM(
        T.MusicgenDecoderConfig(
            **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "ffn_dim": 48, "num_codebooks": 2},
            **{"vocab_size": 90, "pad_token_id": 88, "bos_token_id": 88},
        )
    ),
    "t5": lambda: T.T5ForConditionalGeneration(
        T.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, vocab_size=90)
    ),
    "vit": lambda: T.ViTForImageClassification(T.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=3)),
    "deit": lambda: T.DeiTForImageClassificationWithTeacher(
        T.DeiTConfig(**SIZES, image_size=32, patch_size=8, num_labels=3)
    ),
    "swin": lambda: T.SwinForImageClassification(
        T.SwinConfig(embed_dim=8, depths=[1], num_heads=[2], image_size=32, num_labels=3)
    ),
    "clip": lambda: T.CLIPModel(T.CLIPConfig(text_config=SIZES, vision_config=SIZES | {"image_size": 32})),
    "siglip": lambda: T.SiglipVisionModel(T.SiglipVisionConfig(**SIZES, image_size=32)),
    "mamba": lambda: T.MambaForCausalLM(T.MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=90)),
    "rwkv": lambda: T.RwkvForCausalLM(
        T.RwkvConfig(hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, vocab_size=90)
    ),
    "wav2vec2": lambda: T.Wav2Vec2ForCTC(
        T.Wav2Vec2Config(**SIZES, vocab_size=20, conv_dim=[8], conv_stride=[2], conv_kernel=[3])
    ),
}
